"""One server for all tests that only send requests to it."""

import pytest
from running_server import NANO, NANO_EMAIL, serving
from tiny_models import make_checkpoint


@pytest.fixture(scope="session")
def tiny_base(tmp_path_factory):
    """Return a folder called "tiny" with a model of random weights."""
    return make_checkpoint(tmp_path_factory.mktemp("base") / "tiny")


@pytest.fixture(scope="session")
def server(tiny_base, tmp_path_factory):
    """Return a running server of the base models "tiny", "nano" and "nano_email"."""
    bases = {"tiny": str(tiny_base), "nano": NANO, "nano_email": NANO_EMAIL}
    with serving(tmp_path_factory.mktemp("served"), "--lease=2", **bases) as running:
        yield running
