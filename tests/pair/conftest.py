import pytest

from lessonlib.pair.embedded import ensure_embedded_target, gguf_path


@pytest.fixture(scope="session")
def embedded():
    """The embedded target's folder, converted now if it never was."""
    return ensure_embedded_target()


@pytest.fixture(scope="session")
def reader():
    """The embedded model file, opened."""
    from gguf import GGUFReader

    return GGUFReader(gguf_path())
