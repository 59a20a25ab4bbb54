"""Settings of the property tests, and helpers whose assertions are shown in full."""

import os
import signal
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

# A shell that starts the tests in the background leaves Ctrl-C ignored, and Python then without its handler.
signal.signal(signal.SIGINT, signal.default_int_handler)

# A shared machine may stall any single example, so time limits belong to whole tests.
settings.register_profile("default", max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("prove", settings.get_profile("default"), max_examples=2000)
settings.load_profile("prove" if os.environ.get("GUIDELOOM_PROVE") == "1" else "default")


@pytest.fixture(autouse=True, scope="session")
def _no_waiting_for_manifests() -> Iterator[None]:
    """Thousands of damaged manifests are opened, and none of them is being replaced."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("guideloom.datasets.opening.REREAD_SECONDS", 0)
        yield


pytest.register_assert_rewrite("tests.adversity.programs", "tests.leaks", "tests.loader.samples", "tests.reference")
