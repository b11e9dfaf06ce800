"""Metrics of a run, as Prometheus and the dashboard of compose.metrics.yml use them."""

import json
import os
import re
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml

pytest.importorskip("prometheus_client", reason="pip install 'fedmosaic[metrics]'")
from prometheus_client.parser import text_string_to_metric_families

from common.journal import Failure, FailureKind
from deploy.flower.certificates import make
from deploy.report.metrics import Metrics
from server_app.storage.status_file import NAME, NodeStatus, ServerStatus
from tests.support.compose import FOLDER
from tests.support.run_folder import buffered, census, clocked, entry, finished, write_run

MONITORING = FOLDER / "monitoring"
Values = dict[str, float]
SERIES = {
    **{"fedmosaic_run_ended": "0+0x30", "fedmosaic_run_completed": "0+0x30"},
    **{"fedmosaic_last_round_timestamp_seconds": "0+0x30", "fedmosaic_round_seconds": "100x30"},
    **{"fedmosaic_clients": "4x30", "fedmosaic_clients_online": "4x5 3x24"},
    **{"fedmosaic_clients_selected": "4x30", "fedmosaic_clients_replied": "4x5 3x24"},
    'fedmosaic_certificate_expiry_timestamp_seconds{certificate="server.crt"}': "2592600x30",
    'up{job="fedmosaic"}': "1x30",
}
"""A run without a round since 0, a client that fails and is away from minute 6 on, and a
certificate that has thirty days left at minute 10. Minutes of values."""
FIRST = {"ClientsFailing": 8, "CertificateExpires": 11, "ClientsOffline": 11, "RoundOverdue": 17}
"""Minute in which each alert fires first; a round is overdue after 600 + 3 · 100 s."""


def scraped(folder: Path, trust: Path | None = None) -> Values:
    """Return the metrics by name and labels, without ``fedmosaic_``: ``accuracy{score=global}``."""
    values: Values = {}
    text = Metrics(folder, trust).route.body().decode()
    for sample in (s for family in text_string_to_metric_families(text) for s in family.samples):
        labels = ",".join(f"{name}={value}" for name, value in sorted(sample.labels.items()))
        name = sample.name.removeprefix("fedmosaic_")
        values[f"{name}{{{labels}}}" if labels else name] = sample.value
    return values


def failing(folder: Path) -> Path:
    """Write a run in which client 1 has failed in its last round, and that has not ended."""
    lost = [Failure(k=1, round=2, reason="no reply within 5 s", kind="late")]
    entries = [census(), entry(1, 0.25), entry(2, 0.0, replied=[0], failures=lost)]
    write_run(folder, entries, rounds=9)
    nodes = {0: NodeStatus(node=8, online=True), 1: NodeStatus(node=9)}
    (folder / NAME).write_text(ServerStatus(nodes=nodes).model_dump_json())
    return folder


def test_the_metrics_are_those_of_the_journal(tmp_path: Path) -> None:
    values = scraped(failing(tmp_path / "run"))
    info = "run_info{dataset=digits,method=fedkf,run=run,runtime=,seed=1}"
    reasons = {**dict.fromkeys(get_args(FailureKind), 0), "late": 1.0}
    written = values.pop("last_round_timestamp_seconds")
    assert written == (tmp_path / "run" / "journal.jsonl").stat().st_mtime
    assert values == {
        **{"run_found": 1, info: 1, "run_ended": 0, "run_completed": 0, "rounds": 9, "round": 2},
        **{"round_seconds": 2, "accuracy{score=global}": 0, "best_accuracy": 0.25, "loss": 0.5},
        **{"clients": 2, "clients_online": 1, "clients_selected": 2, "clients_replied": 1},
        **{"seconds_total{phase=clients}": 2, "seconds_total{phase=step}": 1},
        **{"bytes_total{direction=down}": 2010, "bytes_total{direction=up}": 1020},
        **{f"failures_total{{reason={r}}}": n for r, n in reasons.items()},
    }


def test_a_run_with_device_profiles_has_the_time_on_its_clock(tmp_path: Path) -> None:
    assert scraped(clocked(tmp_path / "run"))["clock_seconds"] == 30
    assert "clock_seconds" not in scraped(finished(tmp_path / "plain"))


def test_asynchronous_rounds_have_their_staleness_and_the_jobs_in_flight(tmp_path: Path) -> None:
    values = scraped(buffered(tmp_path / "run"))
    names = ("staleness", "largest_staleness", "jobs_in_flight")
    assert [values[name] for name in names] == [1.5, 2, 2], "of round 3, with staleness 2 and 1"
    clients = values["clients_selected"], values["clients_replied"]
    assert clients == (4, 2), "two jobs are dropped; an alert compares both numbers"
    assert not set(names) & set(scraped(clocked(tmp_path / "plain")))


def test_a_run_ends_with_its_summary_and_goes_on_when_it_is_resumed(tmp_path: Path) -> None:
    folder = finished(tmp_path / "run")
    values = scraped(folder)
    assert (values["run_ended"], values["run_completed"]) == (1, 1)
    later = time.time() + 9
    os.utime(folder / "journal.jsonl", (later, later))
    values = scraped(folder)
    assert (values["run_ended"], values["run_completed"]) == (0, 0)
    stopped = finished(tmp_path / "stopped", summary={"status": "stopped"})
    assert scraped(stopped)["run_completed"] == 0


def test_certificates_expire_also_before_there_is_a_run(tmp_path: Path) -> None:
    before = time.time()
    make(tmp_path / "certs", [], 0, days=20)
    values = scraped(tmp_path / "absent", tmp_path / "certs")
    assert values.pop("run_found") == 0
    name = "certificate_expiry_timestamp_seconds{{certificate={}}}"
    days = {key: (value - before) / 86400 for key, value in values.items()}
    assert days.keys() == {name.format(f) for f in ("ca.crt", "server.crt", "serverapp.crt")}
    assert days[name.format("server.crt")] == pytest.approx(20, abs=0.1)
    assert days[name.format("ca.crt")] > 3000
    assert scraped(tmp_path / "absent", tmp_path) == {"run_found": 0}


def test_a_private_run_has_no_metric_of_what_it_withholds(tmp_path: Path) -> None:
    """Also before the first round, and if a journal of another program has these fields."""
    lost = [Failure(k=1, round=1, reason="no reply within 5 s", kind="late")]
    folder = write_run(tmp_path / "run", [census(), entry(1, 0.5, failures=lost)])
    withheld = {"clients_replied", "bytes_total", "failures_total"}
    assert {name.partition("{")[0] for name in scraped(folder)} > withheld
    with open(folder / "config.toml", "a") as file:
        file.write('[privacy]\nmode = "central"\n')
    names = {name.partition("{")[0] for name in scraped(folder)}
    assert not names & withheld and {"accuracy", "clients"} <= names


def promtool(*words: object) -> str:
    """Run promtool, and return its output; the test fails if promtool does."""
    program = shutil.which("promtool")
    if program is None:
        pytest.skip("promtool is not installed (Debian's package prometheus)")
    done = subprocess.run([program, *map(str, words)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_dashboard_and_the_alerts_use_metrics_and_labels_that_there_are(tmp_path: Path) -> None:
    make(tmp_path / "certs", [], 0, days=20)
    known = {f"fedmosaic_{name}" for name in scraped(failing(tmp_path / "run"), tmp_path / "certs")}
    dashboard = json.loads((MONITORING / "dashboard.json").read_text())
    queries = [one["expr"] for panel in dashboard["panels"] for one in panel["targets"]]
    rules = yaml.safe_load((MONITORING / "alerts.yml").read_text())["groups"][0]["rules"]
    for query in (*queries, *(rule["expr"] for rule in rules)):
        used = re.findall(r"(fedmosaic_\w+)(?:\{(\w+)=)?", query)
        assert used or query.startswith("up{"), query
        for name, label in used:
            some = [one for one in known if one.partition("{")[0] == name and label in one]
            assert some, (name, label, query)
    config = yaml.safe_load((MONITORING / "prometheus.yml").read_text())
    assert config["scrape_configs"][0]["static_configs"] == [{"targets": ["watch:9464"]}]


@pytest.mark.full
def test_promtool_accepts_the_files_and_each_alert_fires_in_its_minute(tmp_path: Path) -> None:
    promtool("check", "config", MONITORING / "prometheus.yml")
    rules = yaml.safe_load((MONITORING / "alerts.yml").read_text())
    alerts = [rule["alert"] for rule in rules["groups"][0]["rules"]]
    other = {"RunStopped": {"fedmosaic_run_ended": "1x9"}}
    other["NotWatched"] = {'up{job="fedmosaic"}': "0+0x9"}
    assert sorted(alerts) == sorted([*FIRST, *other])
    tests = []
    for alert, minute in FIRST.items():
        checks = [fired(alert, minute - 1, 0), fired(alert, minute, 1)]
        tests.append({"input_series": series(SERIES), "promql_expr_test": checks})
    for alert, changed in other.items():
        checks = [fired(alert, 5, 1)]
        tests.append({"input_series": series(SERIES | changed), "promql_expr_test": checks})
    file = tmp_path / "tests.yml"
    content = {"rule_files": [str(MONITORING / "alerts.yml")], "evaluation_interval": "1m"}
    file.write_text(yaml.safe_dump({**content, "tests": [{"interval": "1m", **t} for t in tests]}))
    assert "SUCCESS" in promtool("test", "rules", file)


def fired(alert: str, minute: int, count: int) -> dict[str, Any]:
    """Return a check of promtool: how many alerts of this name fire in the minute."""
    query = f'count(ALERTS{{alertname="{alert}",alertstate="firing"}})'
    samples = [{"labels": "{}", "value": count}] * (count > 0)
    return {"expr": query, "eval_time": f"{minute}m", "exp_samples": samples}


def series(values: dict[str, str]) -> list[dict[str, str]]:
    """Return input series of promtool, which start with a value at minute 0."""
    return [{"series": name, "values": text} for name, text in values.items()]
