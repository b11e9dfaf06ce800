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
def clone(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clone]:
    """A clone in which the first steps of docs/docker.md were taken, up to the end of the run."""
    clone = Clone(engine, tmp_path_factory.mktemp("clone"))
    first, *_ = steps("From a clone to a finished run")
    try:
        clone.said = clone.run(first, clone.folder).stdout
        yield clone
    finally:
        clone.run("docker compose --profile '*' down --volumes --timeout 5", check=False)
