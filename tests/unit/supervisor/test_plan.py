"""Which processes, where, with which flags."""

from services.supervisor.plan import MeshShape, documented_ports, flags_of, plan


def flag(spec, name):
    (value,) = [item.split("=", 1)[1] for item in spec.arguments if item.startswith(f"--{name}=")]
    return value


def test_the_default_mesh_is_on_the_documented_ports():
    shape = MeshShape()
    specs = {spec.name: spec for spec in plan(shape, documented_ports(shape))}
    assert list(specs) == ["tokenizer-0", "engine-0", "engine-1", "scheduler-0", "gateway-0"]
    assert specs["gateway-0"].address == "127.0.0.1:7600"
    assert specs["engine-1"].address == flag(specs["engine-1"], "listen") == "127.0.0.1:7631"
    assert flag(specs["scheduler-0"], "engines") == "127.0.0.1:7630,127.0.0.1:7631"
    assert flag(specs["gateway-0"], "tokenizers") == "127.0.0.1:7610"
    assert flag(specs["gateway-0"], "schedulers") == "127.0.0.1:7620"
    assert len(set(documented_ports(shape))) == 10


def test_the_nearest_override_wins():
    overrides = {
        "*": {"drain_s": 1},
        "engine": {"drain_s": 2, "executor": "scripted"},
        "engine-1": {"drain_s": 3},
    }
    shape = MeshShape(overrides=overrides)
    specs = {spec.name: spec for spec in plan(shape, documented_ports(shape))}
    assert [flag(specs[name], "drain-s") for name in ("gateway-0", "engine-0", "engine-1")] == ["1", "2", "3"]
    assert flag(specs["engine-1"], "executor") == "scripted"


def test_all_but_the_engines_step_back():
    shape = MeshShape(niceness=7)
    niceness = {spec.name: spec.niceness for spec in plan(shape, documented_ports(shape))}
    engines = {"engine-0": 0, "engine-1": 0}
    assert niceness == {"tokenizer-0": 7, "scheduler-0": 7, "gateway-0": 7, **engines}


def test_settings_become_flags():
    settings = {
        "listen": "a:1",
        "is_on": True,
        "is_off": False,
        "names": ["x", "y"],
        "unset": None,
        "share": 0.5,
    }
    assert flags_of(settings) == ("--listen=a:1", "--is-on", "--no-is-off", "--names=x,y", "--share=0.5")
