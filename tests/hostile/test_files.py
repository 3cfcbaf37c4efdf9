"""What is on the disk is for its owner alone."""

import stat

import postgres
from baton import Server, eventually


def open_to_others(directory):
    """Everything below a directory, and itself, that group or others may touch."""
    found = [path for path in [directory, *directory.rglob("*")] if path.lstat().st_mode & 0o077]
    return {str(path.relative_to(directory.parent)): stat.filemode(path.lstat().st_mode) for path in found}


def test_nobody_else_can_read_the_data_directory(tmp_path):
    data = tmp_path / "data"
    with Server(data) as server:
        server.push("q", *range(100))
        assert len(server.pop("q", batch=10)) == 10
        assert open_to_others(data) == {}
        assert server.stop() == 0
    assert open_to_others(data) == {}


def test_nobody_else_can_read_what_is_spooled(tmp_path):
    data, database = tmp_path / "data", postgres.Postgres()
    try:
        store = f"postgres://baton@127.0.0.1:{database.port}/postgres"
        with Server(data, "--store", store) as server:
            server.push("q", 1)
            database.stop()
            pushed = lambda: server.post("/api/v1/push", {"items": [{"queue": "q", "payload": 2}]})
            eventually(lambda: (answer := pushed()).status == 201 and answer.json[0]["status"] == "buffered", seconds=60)
            assert any(path.is_file() for path in (data / "spool").rglob("*"))
            assert open_to_others(data) == {}
    finally:
        database.close()


def test_a_directory_that_is_open_to_others_is_closed_with_a_warning(tmp_path):
    data = tmp_path / "data"
    data.mkdir(mode=0o755)
    data.chmod(0o755)
    with Server(data) as server:
        server.push("q", 1)
        assert open_to_others(data) == {}
        assert str(data) in server.text() and "WARN" in server.text()
