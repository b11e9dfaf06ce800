"""DAFL: a student taught without data."""

from __future__ import annotations

from tests.support.tiny import Run, flat

SMALL = {
    "fleet": "lenet5@0.5", "generator__latent": 8, "generator__width": 8, "dafl__server_steps": 4,
    "dafl__server_batch_size": 8,
}  # fmt: skip


def test_the_teacher_is_what_fedavg_trains(run: Run) -> None:
    dafl, fedavg = run(method="dafl", **SMALL), run(method="fedavg", fleet="lenet5@0.5")
    assert [e["accuracies"]["teacher"] for e in dafl.journal] == [
        e["accuracy"] for e in fedavg.journal
    ]


def test_a_single_owner_is_the_centralised_case(run: Run) -> None:
    result = run(method="dafl", clients=1, data__test_fraction=0.0, **SMALL)
    assert result.summary["accuracies"].keys() == {"student", "teacher"}
    assert result.summary["accuracy"] == result.summary["accuracies"]["student"]


def test_the_student_waits_for_its_start(run: Run) -> None:
    journal = run(method="dafl", rounds=3, dafl__start=3, **SMALL).journal
    students = [e["loss"] for e in journal]
    assert students[0] == students[1] == students[2] != students[3]
    assert "distill_loss" not in journal[2]["metrics"] and "distill_loss" in journal[3]["metrics"]


def test_what_the_servers_generator_draws_can_be_seen(run: Run) -> None:
    from common.toml import to_toml
    from deploy.study.pictures import imagine

    result = run(method="dafl", **SMALL)
    settings = flat(result.folder, method="dafl", **SMALL)
    (result.folder / "config.toml").write_text(to_toml(settings))
    assert int(imagine(result.folder, 30)[1].counts.sum()) == 30
