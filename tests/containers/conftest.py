"""A real engine for the tests of this folder, and one clone with built images."""

from collections.abc import Iterator

import pytest

from tests.support.clone import Clone, steps
from tests.support.engine import Engine, Unavailable
from tests.support.engine import engine as an_engine


@pytest.fixture(scope="session")
def engine() -> Iterator[Engine]:
    running = an_engine()
    try:
        found = running.__enter__()
    except Unavailable as reason:
        pytest.skip(str(reason))
    yield found
    running.__exit__(None, None, None)


@pytest.fixture(scope="session")
def built(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clone]:
    """A clone with the images of docs/docker.md."""
    clone = Clone(engine, tmp_path_factory.mktemp("clone"))
    try:
        clone.run("docker compose build")
        yield clone
    finally:
        clone.run("docker compose --profile '*' down --volumes --timeout 5", check=False)


@pytest.fixture(scope="session")
def clone(built: Clone) -> Clone:
    """The clone after the first steps of docs/docker.md, up to the end of the run."""
    first, *_ = steps("From a clone to a finished run")
    built.said = built.run(first, built.folder).stdout
    return built
