"""Run directories and configs from elsewhere: nothing of others is imported or sent to unasked."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestry.core.config import validate
from orchestry.core.errors import ConfigError
from orchestry.engine.evaluate import evaluate
from orchestry.engine.run import resume
from orchestry.engine.trust import check_trust, remember
from orchestry.task.registry import _forget
from tests.cli.support import FAKE, TASKS, CommandLine, Reply, chat, served

COMMANDS = (
    ("resume", "run"),
    ("evaluate", "run"),
    ("baselines", "run", "fixed", "--of", "run"),
    ("run", "--config", "run/config.yaml"),
    ("run", "--config", "run/config.yaml", "--dry-run"),
    ("judge", "check", "--config", "run/config.yaml", "--dry-run"),
)


@pytest.fixture
def run(cli: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A stranger's run, of a task of theirs that leaves a mark where it is imported."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "theirs"))
    shutil.copytree(TASKS / "words", "shelf/words")
    task = Path("shelf/words/task.py")
    mark = "import os, pathlib; pathlib.Path(os.environ['MARK']).touch()\n"
    head, _, rest = task.read_text().partition("from orchestry")
    task.write_text(f"{head}{mark}from orchestry{rest}")
    monkeypatch.setenv("MARK", str(tmp_path / "made"))
    words = [word if word != TASKS else "shelf" for word in FAKE]
    assert cli("run", *words, "--run-dir", "run").code == 0
    (tmp_path / "made").unlink()
    _forget("orchestry_tasks.words")  # else it is imported already
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "mine"))
    return tmp_path


def change(**changes: object) -> None:
    path = Path("run/config.yaml")
    path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), **changes}))


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
@pytest.mark.slow
def test_a_strangers_task_is_named_and_not_imported(
    cli: CommandLine, run: Path, words: tuple[str, ...]
) -> None:
    refused = cli(*words)
    refused.failed(2, f"task_path {run / 'shelf'} (its code would be imported)", "--trust")
    assert refused.err.count("its code") == 1
    assert not (run / "made").exists()
    cli(*words, "--trust")
    assert (run / "made").exists()
    assert "--trust" not in cli(*words).err, "a confirmed place is remembered"


def test_tasks_in_a_strangers_run_are_theirs_where_one_stands_in_it(
    cli: CommandLine, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    change(task_path=[])
    shutil.move("shelf", "run/tasks")
    monkeypatch.chdir("run")
    for words in (("resume", "."), ("evaluate", "."), ("run", "--config", "config.yaml")):
        cli(*words).failed(2, f"{run / 'run' / 'tasks'} (its code would be imported)")
    assert not (run / "made").exists()
    assert "--trust" not in cli("evaluate", ".", "--trust").err
    assert (run / "made").exists()
    assert "--trust" not in cli("evaluate", ".").err


@pytest.mark.slow
def test_the_own_runs_task_is_no_strangers(cli: CommandLine, run: Path) -> None:
    os.environ["XDG_STATE_HOME"] = str(run / "theirs")  # as the one who made it
    for words in COMMANDS:
        assert "--trust" not in cli(*words).err


@pytest.mark.parametrize("section", ["provider", "judge.provider", "learn.vllm_url"])
def test_a_strangers_server_is_named_and_sent_nothing(
    cli: CommandLine, run: Path, section: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "a-key-of-this-user")
    url, before = "https://stranger.example/v1", yaml.safe_load(Path("run/config.yaml").read_text())
    server = {"name": "openai", "model": "m", "base_url": url}
    if section == "provider":
        change(provider=server, task_path=[])
    elif section == "judge.provider":
        change(judge={**before["judge"], "provider": server}, task_path=[])
    else:
        change(learn={**before["learn"], "vllm_url": url}, task_path=[])
    shutil.copytree("shelf", "tasks")
    for words in COMMANDS:
        cli(*words).failed(2, f" {url} (prompts, and a key", "--trust")
    assert not (run / "made").exists()


def test_what_would_run_unconfined_is_named_for_each_folder(cli: CommandLine, run: Path) -> None:
    change(allow_unsafe_code=True, task_path=[])
    shutil.copytree("shelf", "tasks")
    cli("resume", "run").failed(2, "allow_unsafe_code (code of models would run unconfined")
    assert cli("resume", "run", "--trust").code == 0
    assert cli("resume", "run").code == 0
    shutil.copytree("run", "other")
    cli("resume", "other").failed(2, "allow_unsafe_code")


PAID = {"name": "anthropic", "model": "claude-sonnet-5"}


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"budget": {"usd": 5000.0}}, "budget.usd 5000.0 (so much might be spent)"),
        ({"budget": {"usd": None}}, "budget.usd None (so much might be spent)"),
        (
            {"prices": {"claude-sonnet-5": {"input": 0, "output": 0}}},
            "prices.claude-sonnet-5 below",
        ),
        (
            {"prices": {"claude-sonnet-5": {"input": 3, "output": 1}}},
            "prices.claude-sonnet-5 below",
        ),
        ({"prices": {"claude-of-tomorrow": {"input": 0, "output": 0}}}, "claude-of-tomorrow below"),
    ],
)
@pytest.mark.slow
def test_what_a_stranger_would_have_spent_is_named(
    cli: CommandLine,
    run: Path,
    monkeypatch: pytest.MonkeyPatch,
    changes: dict[str, object],
    named: str,
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "a-key-of-this-user")
    shutil.copytree("shelf", "tasks")
    change(provider=PAID, task_path=[], **changes)
    for words in COMMANDS:
        cli(*words).failed(2, named, "--trust")
    change(provider={"name": "fake", "model": "fake-1"})
    assert "--trust" not in cli("run", "--config", "run/config.yaml", "--dry-run").err


@pytest.mark.slow
def test_money_of_ones_own_is_not_asked_about(
    cli: CommandLine, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "a-key-of-this-user")
    shutil.copytree("shelf", "tasks")
    dear = {"claude-sonnet-5": {"input": 50, "output": 500}}
    change(provider=PAID, task_path=[], judge={}, budget={"usd": 5000.0}, prices=dear)
    where = ("--config", "run/config.yaml", "--dry-run")
    assert cli("run", *where, "--budget", "5").code == 0
    assert cli("run", *where, "--budget", "5000").code == 0
    assert cli("run", *where, "--trust").code == 0
    assert cli("run", *where).code == 0


def test_a_cap_is_ones_own_however_it_is_written(tmp_path: Path) -> None:
    environ = {"XDG_STATE_HOME": str(tmp_path / "state")}
    config = validate({"provider": PAID, "budget": {"usd": 10}})
    with pytest.raises(ConfigError, match=r"budget\.usd 10\.0"):
        check_trust(config, tmp_path, environ=environ)
    check_trust(config, tmp_path, typed={"budget": {"usd": 10}}, environ=environ)


def test_the_config_of_ones_own_run_is_not_asked_about(tmp_path: Path) -> None:
    environ, run = {"XDG_STATE_HOME": str(tmp_path / "state")}, tmp_path / "run"
    config = validate({"provider": PAID, "budget": {"usd": 10}})
    run.mkdir()
    (run / "journal.jsonl").touch()
    remember(config, run, environ)
    check_trust(config, run / "config.yaml", environ=environ)
    with pytest.raises(ConfigError, match="--trust"):
        check_trust(config, tmp_path / "config.yaml", environ=environ)


def test_a_model_may_have_a_space_in_its_name(tmp_path: Path) -> None:
    price = {"my model": {"input": 0, "output": 0}}
    config = validate({"provider": PAID, "prices": price})
    with pytest.raises(ConfigError, match=r"prices\.my model below"):
        check_trust(config, tmp_path, environ={"XDG_STATE_HOME": str(tmp_path / "state")})


def test_from_python_it_takes_a_parameter(run: Path) -> None:
    for call in (resume, evaluate):
        with pytest.raises(ConfigError, match=r"from Python trust=True"):
            call("run")
    assert not (run / "made").exists()
    assert evaluate("run", trust=True).summary.stopped == "done"


def test_a_diff_of_behaviours_imports_nothing(cli: CommandLine, run: Path) -> None:
    text = (
        "task: words\nmodel: fake-1\nbehaviors:\n- {agent: writer, kind: rule, text: Be brief.}\n"
    )
    Path("run/behaviors").mkdir(exist_ok=True)
    Path("run/behaviors/library.yaml").write_text(text)
    for words in (("diff", "run"), ("list", "run"), ("diff", "run", "run")):
        assert cli("behaviors", *words).code == 0
    assert not (run / "made").exists()


def test_a_report_imports_nothing(cli: CommandLine, run: Path) -> None:
    assert cli("report", "run").code == 0
    assert json.loads(cli("rate", "run", "--show", "--json").out)
    assert not (run / "made").exists()


HOSTS = ("127.0.0.1.evil.example", "localhost.evil.example", "api.anthropic.com.evil.example")


@given(
    host=st.sampled_from(HOSTS) | st.from_regex(r"[a-z]{1,9}\.example", fullmatch=True),
    port=st.none() | st.integers(1, 65535),
    path=st.sampled_from(["", "/v1", "/127.0.0.1", "/#localhost"]),
)
def test_no_address_of_others_passes_as_ones_own(
    tmp_path_factory: pytest.TempPathFactory, host: str, port: int | None, path: str
) -> None:
    environ = {"XDG_STATE_HOME": str(tmp_path_factory.mktemp("state"))}
    url = f"http://{host}{f':{port}' if port else ''}{path}"
    config = validate({"provider": {"base_url": url}})
    where = Path("somewhere")
    with pytest.raises(ConfigError, match="would be sent there"):
        check_trust(config, where, environ=environ)
    check_trust(config, where, environ={**environ, "OPENAI_BASE_URL": url})
    check_trust(config, where, typed={"provider": {"base_url": url}}, environ=environ)
    remember(config, where, environ)
    check_trust(config, where, environ=environ)


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:8000/v1",
        "http://localhost:11434",
        "http://[::1]:80",
        "https://api.anthropic.com",
        "https://api.openai.com/v1",
    ],
)
def test_this_machine_and_the_vendors_are_known(url: str, tmp_path: Path) -> None:
    config = validate({"provider": {"base_url": url}})
    check_trust(config, Path("run"), environ={"XDG_STATE_HOME": str(tmp_path)})


LISTED = ["http://127.0.0.1:8000", "http://one.example:8000", "http://two.example/v1"]


@pytest.mark.parametrize("given", [LISTED, ",".join(LISTED), ", ".join(LISTED)])
def test_each_server_of_a_list_is_asked_about(given: object, tmp_path: Path) -> None:
    """Also of a recipe's stage, which is kept as it was given: one text."""
    environ = {"XDG_STATE_HOME": str(tmp_path / "state")}
    learn = {"learn": {"vllm_url": given}}
    stage = {"recipe": {"steps": "search", "stages": {"search": learn}}}
    here, first, second = LISTED
    for raw in (learn, stage):
        with pytest.raises(ConfigError, match="would be sent there") as caught:
            check_trust(validate(raw), tmp_path, environ=environ)
        assert all(f"learn.vllm_url {url} (" in str(caught.value) for url in (first, second))
        assert here not in str(caught.value)
        typed = {"learn": {"vllm_url": f"{here},{first}"}}
        with pytest.raises(ConfigError, match=rf"vllm_url {second} \(") as caught:
            check_trust(validate(raw), tmp_path, typed=typed, environ=environ)
        assert first not in str(caught.value)
        check_trust(validate(raw), tmp_path, typed=learn, environ=environ)
    remember(validate(learn), tmp_path, environ)
    check_trust(validate(stage), tmp_path, environ=environ)


def test_a_server_of_a_recipes_stage_is_named(tmp_path: Path) -> None:
    provider = {"name": "openai", "model": "m", "base_url": "http://elsewhere.example"}
    config = {"recipe": {"steps": "search", "stages": {"search": {"provider": provider}}}}
    with pytest.raises(ConfigError, match=r"base_url http://elsewhere\.example"):
        check_trust(validate(config), tmp_path)


@settings(max_examples=40)
@given(
    section=st.sampled_from(["provider", "judge", "behaviors", "agents"]),
    variable=st.from_regex(r"[A-Z][A-Z_0-9]{0,12}", fullmatch=True),
    url=st.none() | st.sampled_from(["http://127.0.0.1:8000/v1", "https://api.openai.com/v1"]),
    value=st.sampled_from(["${%s}", "Bearer ${%s}", "a ${%s} ${%s}"]),
)
def test_no_variable_of_the_environment_is_sent_unasked(
    tmp_path_factory: pytest.TempPathFactory,
    section: str,
    variable: str,
    url: str | None,
    value: str,
) -> None:
    environ = {"XDG_STATE_HOME": str(tmp_path_factory.mktemp("state"))}

    def raw(base_url: str | None) -> dict[str, object]:
        headers = {"x-key": value.replace("%s", variable)}
        asked = {"name": "openai", "model": "m", "headers": headers, "base_url": base_url}
        if section == "agents":
            return {"agents": {"writer": {"provider": asked}}}
        return {"provider": asked} if section == "provider" else {section: {"provider": asked}}

    config, where = validate(raw(url)), Path("somewhere")
    with pytest.raises(ConfigError) as caught:
        check_trust(config, where, environ=environ)
    assert f"headers ${{{variable}}} (its value would be sent to" in str(caught.value)
    check_trust(config, where, typed=raw(url), environ=environ)
    remember(config, where, environ)
    check_trust(config, where, environ=environ)
    with pytest.raises(ConfigError, match="its value would be sent to http://localhost:9"):
        check_trust(validate(raw("http://localhost:9")), where, environ=environ)


def test_a_strangers_variable_is_named_and_not_sent(
    cli: CommandLine, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_OF_MINE", "hush-of-this-user")
    got = list[str]()

    def answer(number: int, body: dict[str, object]) -> Reply:
        got.append(str(body))
        return 200, chat("word")

    shutil.copytree("shelf", "tasks")
    with served(answer) as url:
        server = {"name": "openai", "model": "m", "base_url": url}
        server["headers"] = {"x-key": "${SECRET_OF_MINE}"}  # type: ignore[assignment]
        change(provider=server, task_path=[], prices={"m": {"input": 0, "output": 0}})
        for words in COMMANDS:
            cli(*words).failed(2, "SECRET_OF_MINE} (its value would be sent", "--trust")
        assert not got
