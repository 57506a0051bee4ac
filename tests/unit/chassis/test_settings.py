"""How settings are read, refused and shown."""

from pathlib import Path
from typing import ClassVar

import pytest
from pydantic import Field, SecretStr, ValidationError

from services.chassis.settings import ServiceSettings, load_settings


class ProbeSettings(ServiceSettings):
    service: ClassVar[str] = "probe"
    listen: str = Field("127.0.0.1:7777", description="host:port to serve gRPC on")
    peers: tuple[str, ...] = Field(("a:1",), description="host:port of each peer")
    api_key: SecretStr = Field(SecretStr(""), description="Key that peers show")
    model: Path | None = Field(None, description="Folder of the model")
    is_fast: bool = Field(False, description="Leaves checks out")


def test_flag_goes_before_environment_before_default(monkeypatch: pytest.MonkeyPatch) -> None:
    assert load_settings(ProbeSettings, []).drain_s == 30.0
    monkeypatch.setenv("PAGEMESH_PROBE_DRAIN_S", "4")
    assert load_settings(ProbeSettings, []).drain_s == 4.0
    assert load_settings(ProbeSettings, ["--drain-s", "5"]).drain_s == 5.0


def test_other_services_environment_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAGEMESH_ENGINE_DRAIN_S", "4")
    monkeypatch.setenv("DRAIN_S", "4")
    # Kubernetes sets these for a service named pagemesh-probe.
    monkeypatch.setenv("PAGEMESH_PROBE_PORT", "tcp://10.0.0.1:7600")
    monkeypatch.setenv("PAGEMESH_PROBE_SERVICE_HOST", "10.0.0.1")
    assert load_settings(ProbeSettings, []).drain_s == 30.0


@pytest.mark.parametrize("text", ["b:1,c:2", " b:1 , c:2 ,"])
def test_lists_are_comma_separated(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    assert load_settings(ProbeSettings, ["--peers", text]).peers == ("b:1", "c:2")
    monkeypatch.setenv("PAGEMESH_PROBE_PEERS", text)
    assert load_settings(ProbeSettings, []).peers == ("b:1", "c:2")


def test_instance_is_named_by_service_and_port() -> None:
    assert load_settings(ProbeSettings, []).instance_id == "probe-7777"
    assert load_settings(ProbeSettings, ["--listen=[::1]:9"]).instance_id == "probe-9"
    assert load_settings(ProbeSettings, ["--instance-id=x"]).instance_id == "x"


def test_switches_need_no_value() -> None:
    assert load_settings(ProbeSettings, ["--is-fast"]).is_fast
    assert not load_settings(ProbeSettings, ["--no-is-fast"]).is_fast


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--drain-s=soon"], "--drain-s (PAGEMESH_PROBE_DRAIN_S)"),
        (["--drain-s=0"], "greater than 0"),
        (["--drain-s=nan"], "--drain-s"),
        (["--listen=7777"], "expected host:port"),
        (["--listen="], "expected host:port"),
        (["--listen=::1:80"], "brackets"),
        (["--listen=a:70000"], "0..65535"),
        (["--log-level=loud"], "--log-level"),
        ([f"--tls-cert={__file__}"], "tls_cert and tls_key"),
        (["--tls-ca=/nope.pem"], "does not point to a file"),
        (["--max-message-bytes=1"], "--max-message-bytes"),
        (["--nope=1"], "--nope"),
        (["--drain=1"], "--drain"),
        (["stray"], "stray"),
        (["--drain-s=a\nb"], "--drain-s"),
    ],
)
def test_bad_setting_exits_2_with_one_line(
    argv: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        load_settings(ProbeSettings, argv)
    shown = capsys.readouterr()
    assert caught.value.code == 2
    assert shown.out == "" and shown.err.count("\n") == 1
    assert words in shown.err and shown.err.startswith("pagemesh-probe: ")


def test_bad_environment_exits_2(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("PAGEMESH_PROBE_DRAIN_S", "soon")
    with pytest.raises(SystemExit) as caught:
        load_settings(ProbeSettings, [])
    assert caught.value.code == 2
    assert "PAGEMESH_PROBE_DRAIN_S" in capsys.readouterr().err


def test_print_settings_shows_effective_values_and_masks_secrets(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PAGEMESH_PROBE_API_KEY", "hunter2")
    with pytest.raises(SystemExit) as caught:
        load_settings(ProbeSettings, ["--print-settings", "--drain-s=7", "--peers=x:1,y:2"])
    shown = capsys.readouterr().out
    assert caught.value.code == 0
    assert "drain_s = 7.0  # Seconds that running work has to finish after SIGTERM; default 30.0" in shown
    assert "peers = x:1,y:2  # host:port of each peer; default a:1" in shown
    assert "hunter2" not in shown and "api_key = ********" in shown
    assert len(shown.splitlines()) == len(ProbeSettings.model_fields)


def test_help_names_flag_variable_and_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        load_settings(ProbeSettings, ["--help"])
    assert caught.value.code == 0
    shown = " ".join(capsys.readouterr().out.split())
    for name, field in ProbeSettings.model_fields.items():
        assert "--" + name.replace("_", "-") in shown
        assert f"PAGEMESH_PROBE_{name.upper()}" in shown
        assert str(field.description) in shown


def test_settings_are_frozen() -> None:
    settings = load_settings(ProbeSettings, [])
    with pytest.raises(ValidationError):
        settings.drain_s = 1.0  # type: ignore[misc]
