"""One frozen settings class per service: flag > environment > default, every field with unit and sentence.

It knows how settings are read and shown, not what any of them means to a service.
"""

import argparse
import sys
import types
from collections.abc import Sequence
from typing import Any, ClassVar, Literal, NoReturn, Self, TypeVar, get_origin

from pydantic import (
    Field,
    FilePath,
    SecretStr,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_settings import BaseSettings, EnvSettingsSource, PydanticBaseSettingsSource, SettingsConfigDict

from services.chassis.address import split_address

EXIT_BAD_SETTING = 2

Settings = TypeVar("Settings", bound="ServiceSettings")


class ServiceSettings(BaseSettings):
    """What every service can be told. Subclasses set `service` and add fields."""

    model_config = SettingsConfigDict(
        frozen=True, extra="forbid", enable_decoding=False, validate_default=True, allow_inf_nan=False
    )

    service: ClassVar[str] = "service"
    """Short name; the environment variables are PAGEMESH_<SERVICE>_<FIELD>.
    No field may be named `port` or `service_*`: Kubernetes sets such variables by itself."""

    listen: str = Field("127.0.0.1:0", description="host:port to serve gRPC on; port 0 takes a free one")
    metrics_listen: str = Field(
        "127.0.0.1:0", description="host:port to serve Prometheus metrics on over HTTP; empty is off"
    )
    otlp_endpoint: str = Field(
        "", description="host:port of an OTLP gRPC collector that traces are sent to; empty is off"
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="Least level that is logged"
    )
    drain_s: float = Field(30.0, gt=0, description="Seconds that running work has to finish after SIGTERM")
    max_message_bytes: int = Field(
        16 * 2**20, ge=2**16, le=2**30, description="Bytes of a public message at most; every hop adds 1 MiB"
    )
    keepalive_s: float = Field(
        10.0,
        ge=0.5,
        le=600,
        description="Seconds of silence after which a connection is pinged, and ends if that is unanswered "
        "for half as long; the same for all processes of a mesh",
    )
    tls_cert: FilePath | None = Field(
        None, description="PEM file of this process's certificates; unset is plain text"
    )
    tls_key: FilePath | None = Field(None, description="PEM file of the certificate's private key")
    tls_ca: FilePath | None = Field(None, description="PEM file of the authorities that dialled peers need")
    instance_id: str = Field("", description="Name of this process for its peers; empty is <service>-<port>")

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return init_settings, EnvSettingsSource(settings_cls, env_prefix=env_prefix(cls))

    @field_validator("*", mode="before")
    @classmethod
    def _split_list(cls, value: Any, info: ValidationInfo) -> Any:
        assert info.field_name is not None
        if isinstance(value, str) and _is_list(cls.model_fields[info.field_name].annotation):
            return [item.strip() for item in value.split(",") if item.strip()]
        return value

    @field_validator("listen", "metrics_listen")
    @classmethod
    def _check_address(cls, value: str, info: ValidationInfo) -> str:
        if value or info.field_name == "listen":
            split_address(value)
        return value

    @field_validator("instance_id")
    @classmethod
    def _name_instance(cls, value: str, info: ValidationInfo) -> str:
        if value or "listen" not in info.data:
            return value
        return f"{cls.service}-{split_address(info.data['listen'])[1]}"

    @model_validator(mode="after")
    def _check_tls(self) -> Self:
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ValueError("tls_cert and tls_key go together; only one is set")
        return self


def env_prefix(cls: type[ServiceSettings]) -> str:
    """Prefix of the class's environment variables."""
    return f"PAGEMESH_{cls.service.upper()}_"


def load_settings(cls: type[Settings], argv: Sequence[str] | None = None) -> Settings:
    """Settings of this process. Exits 2 with one line on a bad one, 0 after --print-settings."""
    given = vars(_parser(cls).parse_args(argv))
    must_print = given.pop("print_settings")
    try:
        settings = cls(**{name: value for name, value in given.items() if value is not None})
    except ValidationError as error:
        _refuse(cls, "; ".join(_problem(cls, item) for item in error.errors(include_url=False)))
    if must_print:
        print(show_settings(settings))
        sys.exit(0)
    return settings


def show_settings(settings: ServiceSettings) -> str:
    """One line per setting: name = value  # sentence; default."""
    lines = []
    for name, field in type(settings).model_fields.items():
        default = _shown(field.get_default(call_default_factory=True, validated_data={}))
        lines.append(f"{name} = {_shown(getattr(settings, name))}  # {field.description}; default {default}")
    return "\n".join(lines)


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, without the usage."""

    def error(self, message: str) -> NoReturn:
        self.exit(EXIT_BAD_SETTING, f"{self.prog}: {message}; --help lists the settings\n")


def _parser(cls: type[ServiceSettings]) -> _Parser:
    parser = _Parser(prog=f"pagemesh-{cls.service}", allow_abbrev=False)
    parser.add_argument("--print-settings", action="store_true", help="print the effective settings and exit")
    for name, field in cls.model_fields.items():
        flag = _flag(name)
        sentence = f"{field.description} [{env_prefix(cls)}{name.upper()}]".replace("%", "%%")
        if field.annotation is bool:
            parser.add_argument(flag, dest=name, action=argparse.BooleanOptionalAction, help=sentence)
        else:
            parser.add_argument(flag, dest=name, metavar="VALUE", help=sentence)
    return parser


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _refuse(cls: type[ServiceSettings], problem: str) -> NoReturn:
    print(f"pagemesh-{cls.service}: {problem}", file=sys.stderr)
    sys.exit(EXIT_BAD_SETTING)


def _problem(cls: type[ServiceSettings], error: Any) -> str:
    message = " ".join(str(error["msg"]).removeprefix("Value error, ").split())
    if not error["loc"]:
        return message
    name = str(error["loc"][0])
    given = "" if _is_secret(cls, name) else f"; given {error['input']!r}"
    return f"{_flag(name)} ({env_prefix(cls)}{name.upper()}): {message}{given}"


def _is_secret(cls: type[ServiceSettings], name: str) -> bool:
    field = cls.model_fields.get(name)
    return field is not None and "SecretStr" in str(field.annotation)


def _is_list(annotation: Any) -> bool:
    if isinstance(annotation, types.UnionType):
        return any(_is_list(option) for option in annotation.__args__)
    return get_origin(annotation) in (list, tuple, set, frozenset)


def _shown(value: Any) -> str:
    if isinstance(value, SecretStr):
        return "********" if value.get_secret_value() else "(empty)"
    if isinstance(value, list | tuple | set | frozenset):
        return ",".join(map(str, value)) or "(empty)"
    if value is None:
        return "(unset)"
    return str(value) if value != "" else "(empty)"
