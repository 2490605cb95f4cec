"""The server of the live page, asked as a browser asks it."""

from __future__ import annotations

import errno
import gzip
import http.client
import json
import os
import shutil
import time
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from holdfast.bootstrap.web import watch_app as run_board
from holdfast.bootstrap.web import watch_app as web_app
from holdfast.bootstrap.web.serve import AccessRules, bind, serving
from holdfast.bootstrap.web.watch_app import STATIC, RunBoard, watch_app
from holdfast.domain.errors import StateError
from tests.support.command_line import run_here
from tests.support.page_client import Client
from tests.support.run_folders import add_event, add_steps, hold, make_run

PRESS = {"X-Holdfast": "1"}


@contextmanager
def served(folders, token=None, **options):
    board, bound = RunBoard(folders), bind("127.0.0.1", 0)
    with closing(board), serving(watch_app(board, AccessRules(token), **options), bound):
        yield Client(bound.getsockname()[1])


@pytest.fixture
def run(tmp_path):
    folder = make_run(tmp_path / "run")
    hold(folder)
    add_event(folder, "RunStarted", step=0, tokens=0, memory_limit=4 * 10**9)
    add_steps(folder, range(1, 301))
    return folder


@pytest.fixture
def client(run):
    with served([run]) as found:
        yield found


def test_the_page_and_its_files_are_served(client):
    """The page, its scripts and styles come from the package, each with its type, and nothing else of the disk does."""
    status, body, headers = client.ask("/")
    assert (status, headers["content-type"]) == (200, "text/html; charset=utf-8")
    for name in {each.name for each in STATIC.iterdir()}:
        assert client.ask(f"/static/{name}")[0] == 200
    assert body.count(b"static/") >= 5
    for path in ("/static/none.js", "/static/../access.py", "/static/%2e%2e/access.py", "/etc/passwd"):
        assert client.ask(path)[0] == 404


def test_the_page_needs_no_other_server():
    """No file of the pages names an address of the network that it would load."""
    for path in STATIC.iterdir():
        text = path.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
        assert "http://" not in text, path.name
        assert "https://" not in text, path.name


def test_curves_are_answered_in_the_width_that_is_asked_for(client):
    """A curve has about as many points as asked for, a range is finer, and compressed answers say the same."""
    client.ask("/api/state")
    status, found = client.json("/api/runs/0/curves?names=loss,eval_loss,none&width=50")
    assert status == 200
    assert found["curves"].keys() == {"loss", "eval_loss"}
    assert (found["bucket"], len(found["curves"]["loss"]["x"])) == (8, 38)
    assert found["curves"]["eval_loss"]["x"] == [100, 200, 300]
    fine = client.json("/api/runs/0/curves?names=loss&width=50&first=101&last=120")[1]
    assert fine["curves"]["loss"]["x"] == list(range(101, 121))
    body = client.ask("/api/runs/0/curves?names=loss&width=5000", Accept_Encoding="gzip")[1]
    assert json.loads(gzip.decompress(body))["curves"]["loss"]["x"] == list(range(1, 301))


def test_only_new_points_are_answered(client, run):
    """A page that has the earlier points gets those from its last bucket on; after a roll-back it gets all."""
    client.ask("/api/state")
    known = client.json("/api/runs/0/curves?names=loss&width=100")[1]
    more = f"&since=300&bucket={known['bucket']}&generation={known['generation']}"
    add_steps(run, range(301, 306))
    client.ask("/api/state")
    tail = client.json(f"/api/runs/0/curves?names=loss&width=100{more}")[1]
    assert tail["first"] == 300
    assert tail["curves"]["loss"]["x"] == [303, 305]
    lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    (run / "cut").write_text("".join(lines[:50]))
    (run / "cut").replace(run / "metrics.jsonl")
    client.ask("/api/state")
    assert client.json(f"/api/runs/0/curves?names=loss&width=100{more}")[1]["curves"]["loss"]["x"] == list(range(1, 51))


@pytest.mark.parametrize(
    "path",
    [
        "/api/runs/7/curves",
        "/api/runs/0/none",
        "/api/runs/x/notes",
        "/api/none",
        pytest.param(f"/api/runs/{'9' * 5000}/notes", id="many digits"),
    ],
)
def test_what_is_not_there_is_told(client, path):
    """An unknown run or question is answered with a sentence and 404."""
    status, found = client.json(path)
    assert status == 404
    assert found["error"]


def test_a_question_that_makes_no_sense_is_told(client):
    """A range that is no number is the asker's mistake."""
    assert client.json("/api/runs/0/curves?names=loss&first=abc") == (400, {"error": "first is not a number."})


def test_a_range_beyond_all_steps_is_empty(client):
    """A range whose numbers are larger than any step has no points."""
    client.ask("/api/state")
    assert client.json("/api/runs/0/curves?names=loss&first=1e300&last=1e301")[1]["curves"] == {}


def test_results_of_an_earlier_step_reach_the_page(client, run):
    """A page that has all points so far gets the results of a suite, which belong to a step before them."""
    client.ask("/api/state")
    path = "/api/runs/0/curves?names=loss,suite/own/acc&width=5000"
    found = client.json(path)[1]
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"step": 200, "suite/own/acc": 0.5}\n')
    client.ask("/api/state")
    more = client.json(f"{path}&since=300&bucket={found['bucket']}&generation={found['generation']}")[1]
    assert more["generation"] != found["generation"]
    whole = client.json(path)[1]["curves"]
    assert (whole["suite/own/acc"]["x"], len(whole["loss"]["x"])) == ([200], 300)


def test_a_folder_whose_name_is_not_unicode_is_shown(tmp_path):
    """A run folder whose name has other bytes than UTF-8 is shown like any other."""
    folder = make_run(tmp_path / "here")
    odd = tmp_path / os.fsdecode(b"run\xff")
    folder.rename(odd)
    with served([odd]) as client, client.stream() as states:
        assert os.fsencode(client.json("/api/state")[1]["runs"][0]["name"]) == b"run\xff"
        assert next(states)[1]["runs"][0]["step"] == 0


def test_a_change_is_streamed_at_the_next_look(client, run, monkeypatch):
    """The first look after a step is recorded finds it and the stream gives it, which both look within two seconds."""
    looks, look = [], RunBoard.look

    def counted(board):
        number, looks[len(looks) :] = len(looks), [None]
        looks[number] = look(board)
        return looks[number]

    with client.stream() as states:
        assert next(states)[1]["runs"][0]["step"] == 300
        monkeypatch.setattr(RunBoard, "look", counted)
        add_steps(run, range(301, 302))
        begun = len(looks)
        while next(states)[1]["runs"][0]["step"] != 301:
            pass
    assert True in looks[: begun + 1]
    assert run_board._SECONDS_BETWEEN_LOOKS + web_app._SECONDS_BETWEEN_CHANGES < 2.0


def test_a_stream_continues_where_it_broke(client, run):
    """A page that comes back with the number of its last state gets the next one that differs, not the same again."""
    with client.stream() as states:
        number, _ = next(states)
    add_steps(run, range(301, 302))
    with client.stream(Last_Event_ID=number) as states:
        later, state = next(states)
        assert later != number
        assert state["runs"][0]["step"] == 301
    with client.stream(Last_Event_ID="another-5") as states:
        assert next(states)[0] == later


@pytest.mark.parametrize("action", ["save", "stop"])
def test_a_button_creates_the_file_that_the_run_obeys(client, run, action):
    """SAVE and STOP are created once for a run that trains, and the state says what was asked for."""
    assert client.json(f"/api/runs/0/{action}", "POST", **PRESS) == (202, {"asked": [action.upper()]})
    assert (run / action.upper()).is_file()
    assert client.json("/api/state")[1]["runs"][0]["asked"] == [action.upper()]


def test_a_button_of_an_earlier_server_is_refused(client, run):
    """The number of a run may be that of another one after a restart of the server, which must not stop it."""
    epoch = client.json("/api/state")[1]["epoch"]
    status, found = client.json("/api/runs/0/stop?epoch=another", "POST", **PRESS)
    assert (status, "was started again" in found["error"]) == (409, True)
    assert not (run / "STOP").exists()
    assert client.json(f"/api/runs/0/stop?epoch={epoch}", "POST", **PRESS)[0] == 202


def test_nothing_is_asked_of_a_run_that_does_not_train(client, run):
    """A STOP that waits in the folder would end the next start at once: it is refused, with the reason."""
    add_event(run, "RunFinished", step=300, tokens=0)
    status, found = client.json("/api/runs/0/stop", "POST", **PRESS)
    assert status == 409
    assert "no process trains run now: it is finished" in found["error"]
    assert not (run / "STOP").exists()


def test_no_other_site_can_press_a_button(client, run):
    """A POST of a form or a script of another site creates no file."""
    foreign = {"Origin": "http://evil.example", "Sec_Fetch_Site": "cross-site"}
    for headers in ({}, foreign, PRESS | foreign, PRESS | {"Host": "evil.example"}):
        assert client.ask("/api/runs/0/stop", "POST", **headers)[0] == 403
    assert client.ask("/api/runs/0/stop")[0] in (404, 405)
    assert not (run / "STOP").exists()


def test_a_read_only_page_presses_nothing(run):
    """With --read-only the state says so, and buttons are refused."""
    with served([run], is_read_only=True) as client:
        assert client.json("/api/state")[1]["read_only"] is True
        assert client.ask("/api/runs/0/save", "POST", **PRESS)[0] == 403
    assert not (run / "SAVE").exists()


def test_a_large_body_is_refused(client):
    """A request with a body, which no answer needs, is not read into memory."""
    with closing(http.client.HTTPConnection("127.0.0.1", client.port, timeout=60)) as connection:
        connection.request("POST", "/api/runs/0/save", body=b"x" * 100_000, headers=PRESS)
        assert connection.getresponse().status in (202, 413)


def test_with_a_token_nothing_is_answered_without_it(run):
    """Each path needs the token, the stream as well, and the link's cookie gives all of them."""
    token = "a-token-of-many-letters"
    with served([run], token) as client:
        for path in ("/", "/static/page.js", "/api/state", "/api/stream", "/api/runs/0/settings"):
            assert client.ask(path)[0] == 401
        assert client.ask("/api/runs/0/stop", "POST", **PRESS)[0] == 401
        status, _, headers = client.ask(f"/?token={token}")
        cookie = headers["set-cookie"].split(";")[0]
        assert (status, headers["location"]) == (303, "/")
        assert client.ask("/api/state", Cookie=cookie)[0] == 200
        assert client.ask("/api/runs/0/save", "POST", Cookie=cookie, **PRESS)[0] == 202


def test_runs_below_a_folder_are_found(tmp_path):
    """A folder stands for the runs in it, with names that tell them apart."""
    for name in ("a/one", "b/one", "two"):
        make_run(tmp_path / "runs" / name)
    (tmp_path / "runs" / "empty").mkdir()
    with closing(RunBoard([tmp_path / "runs"])) as board:
        assert [view.name for view in board.views] == ["a/one", "b/one", "runs/two"]
    with pytest.raises(StateError, match="is not a run folder"):
        RunBoard([tmp_path / "runs" / "empty"])


def test_a_refused_start_is_left_out(tmp_path):
    """The page shows no folder whose first start was refused, unless it is named or there is nothing else to show."""
    start = {
        "time": "2026-11-22T12:00:00+00:00",
        "phase": "looking at data",
        "is_first": True,
        "error": "DataError: no",
    }
    make_run(tmp_path / "runs/first")
    make_run(tmp_path / "runs/typo", start=start)
    for folders, names in ((["runs"], ["first"]), (["runs/typo"], ["typo"]), (["runs/first", "runs/typo"], None)):
        with closing(RunBoard([tmp_path / folder for folder in folders])) as board:
            assert [view.name for view in board.views] == (names or ["first", "typo"])
    shutil.rmtree(tmp_path / "runs/first")
    with closing(RunBoard([tmp_path / "runs"])) as board:
        assert [view.name for view in board.views] == ["typo"]


def test_a_run_that_begins_later_is_added(tmp_path, monkeypatch):
    """A run that begins below the folder while the page is open comes behind the others, which keep their numbers."""
    monkeypatch.setattr("holdfast.bootstrap.web.watch_app._SECONDS_BETWEEN_SCANS", 0.0)
    monkeypatch.setattr("holdfast.bootstrap.web.watch_app._SHARE_OF_SCANS", 0)
    make_run(tmp_path / "runs/b/second")
    with served([tmp_path / "runs"]) as client:
        assert [run["name"] for run in client.json("/api/state")[1]["runs"]] == ["second"]
        make_run(tmp_path / "runs/a/second")
        add_steps(tmp_path / "runs/a/second", range(1, 8))
        found = client.json("/api/state")[1]["runs"]
        assert [(run["number"], run["name"]) for run in found] == [(0, "b/second"), (1, "a/second")]
        assert found[1]["step"] == 7
        shutil.rmtree(tmp_path / "runs/a")
        assert len(client.json("/api/state")[1]["runs"]) == 2


def test_a_run_with_odd_files_does_not_hide_the_others(tmp_path):
    """A run whose files hold values that no run writes is shown as far as possible, and the others go on."""
    for name in ("good", "odd", "step"):
        make_run(tmp_path / name)
    record = json.loads((tmp_path / "odd/run.json").read_text())
    record |= {"history": [{"time": 5, "changed": {"a": [1, 2]}}, {"time": "x", "changed": {"a": 1}}], "origins": -0.0}
    (tmp_path / "odd/run.json").write_text(json.dumps(record))
    (tmp_path / "odd/goodput.jsonl").write_text(f'{{"began": 1{"0" * 400}, "time": 2, "step": 1, "seconds": {{}}}}\n')
    (tmp_path / "step/metrics.jsonl").write_text('{"step": 9223372036854775808, "loss": "x"}\n')
    with served([tmp_path]) as client:
        add_steps(tmp_path / "good", range(1, 5))
        status, state = client.json("/api/state")
        assert status == 200
        assert {run["name"]: run["step"] for run in state["runs"]}["good"] == 4
        for number in range(3):
            assert client.json(f"/api/runs/{number}/settings")[0] == 200
        add_steps(tmp_path / "good", range(5, 9))
        assert {run["name"]: run["step"] for run in client.json("/api/state")[1]["runs"]}["good"] == 8


def test_the_trials_of_a_study_are_runs(tmp_path):
    """A study, whose folder is locked during its search, stands for its trials."""
    make_run(tmp_path / "search/trial-0000")
    (tmp_path / "search/study.json").write_text("{}")
    (tmp_path / "search/LOCK").touch()
    with closing(RunBoard([tmp_path])) as board:
        assert [view.name for view in board.views] == ["trial-0000"]
    process = run_here("explain", "search", cwd=tmp_path)
    assert process.returncode == 4
    assert "search is a study of tune: name the run folder of a trial, such as search/trial-0000" in process.stderr


def test_an_emptied_folder_does_not_hide_the_runs_of_others(tmp_path, monkeypatch):
    """Of several folders, one without a run any more holds up the search in no other."""
    monkeypatch.setattr("holdfast.bootstrap.web.watch_app._SECONDS_BETWEEN_SCANS", 0.0)
    monkeypatch.setattr("holdfast.bootstrap.web.watch_app._SHARE_OF_SCANS", 0)
    for name in ("b/b1", "a/a1"):
        make_run(tmp_path / name)
    with closing(RunBoard([tmp_path / "b", tmp_path / "a"])) as board:
        shutil.rmtree(tmp_path / "b/b1")
        make_run(tmp_path / "a/a2")
        board.look()
        assert [view.name for view in board.views] == ["b1", "a1", "a2"]


def test_folders_that_cannot_be_read_are_left_out(tmp_path, monkeypatch):
    """A folder of runs is shown although one of the folders in it may not be read."""
    make_run(tmp_path / "runs/first")
    (tmp_path / "runs/private").mkdir()
    iterdir = Path.iterdir

    def refusing(path):
        if path.name == "private":
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return iterdir(path)

    monkeypatch.setattr(Path, "iterdir", refusing)
    with closing(RunBoard([tmp_path / "runs"])) as board:
        assert [view.name for view in board.views] == ["first"]


def test_the_record_of_another_user_is_left_out(tmp_path, monkeypatch):
    """A folder of runs is shown although the system refuses each look into one of the folders in it."""
    make_run(tmp_path / "runs/first")
    (tmp_path / "runs/private").mkdir()
    exists = Path.exists

    def refusing(path):
        if path.parent.name == "private":
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return exists(path)

    monkeypatch.setattr(Path, "exists", refusing)
    with closing(RunBoard([tmp_path / "runs"])) as board:
        assert [view.name for view in board.views] == ["first"]


def test_nothing_is_read_while_nobody_looks(run, monkeypatch):
    """Without an open page the server does not touch the run folder."""
    looks, look = [], RunBoard.look
    monkeypatch.setattr(run_board, "_SECONDS_BETWEEN_LOOKS", 0.01)
    monkeypatch.setattr(RunBoard, "look", lambda board: looks.append(1) or look(board))
    board, bound = RunBoard([run]), bind("127.0.0.1", 0)
    with closing(board), serving(watch_app(board, AccessRules()), bound):
        with Client(bound.getsockname()[1]).stream() as states:
            next(states)
            while len(looks) < 3:
                time.sleep(0.01)
        while board._watchers:  # until the server hears that the page was left
            time.sleep(0.01)
        begun = len(looks)
        time.sleep(0.5)  # in which it would look many times
        assert len(looks) <= begun + 1  # that of the moment at which the page was left
