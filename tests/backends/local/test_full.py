"""Full-weight training: gradients beside autograd, exact resumes, evaluation and export."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from pydantic import ValidationError

import orchestry
from orchestry.backends.local.full import WEIGHTS, FullWeights, check_memory
from orchestry.backends.local.weights import FULL as FACTS
from orchestry.backends.local.weights import team_of
from orchestry.core.errors import ConfigError, StoreError
from orchestry.core.learning import LearnConfig
from orchestry.engine.export import export
from orchestry.engine.run import resume
from orchestry.store.run import Run
from tests.backends.letters import artefacts, config, learned
from tests.backends.local.test_trainer import ROLES, TEMPERATURE, batch_of, equal, trainer, weights
from tests.backends.local.tiny import Kind, tiny_folder

FULL = ("learn.method=full", "learn.rank=16", "learn.alpha=32", "learn.learning_rate=1e-3")
SETTINGS: dict[str, Any] = {"method": "full", "rank": 16, "alpha": 32, "learning_rate": 1e-3}
pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("kind", ["llama", "gpt_neox"])
@pytest.mark.parametrize("shared", [False, True])
def test_the_gradient_is_that_of_autograd_through_a_plain_model(
    kind: Kind, shared: bool, tmp_path: Path
) -> None:
    base = str(tiny_folder(tmp_path / "base", kind))
    made = trainer(base, shared=shared, micro_tokens=64, **SETTINGS)
    assert len(made.crews) == (1 if shared else 2)
    for crew in made.crews:
        crew.base.model.double()
    batch = batch_of(made)
    made._backward(batch, None)
    for crew in made.crews:
        plain: Any = transformers.AutoModelForCausalLM.from_pretrained(base).double()
        total = torch.zeros((), dtype=torch.float64)
        for sample in (s for s in batch.samples if s.agent in crew.roles):
            ids, start = torch.tensor([[*sample.prompt_ids, *sample.ids]]), len(sample.prompt_ids)
            rows = (plain(ids).logits[0, start - 1 : -1] / TEMPERATURE).log_softmax(-1)
            chosen = rows.gather(-1, torch.tensor(sample.ids)[:, None]).sum()
            total = total - sample.advantage * chosen / batch.actions[sample.agent]
        total.backward()
        theirs = dict(plain.named_parameters())
        ours = dict(crew.base.model.named_parameters())
        assert ours.keys() == theirs.keys()
        norm = torch.stack([p.grad.norm() for p in theirs.values()]).norm()
        apart = torch.stack([(ours[n].grad - p.grad).norm() for n, p in theirs.items()]).norm()
        assert apart < 1e-6 * norm


def test_agents_learn_apart_and_a_checkpoint_goes_on_exactly(model: str, tmp_path: Path) -> None:
    made = trainer(model, **SETTINGS)
    began = weights(made)
    made.learn(batch_of(made))
    assert not any(map(torch.equal, weights(made), began))
    left, right = (crew.adapters.parameters() for crew in made.crews)
    assert not any(map(torch.equal, left, right))
    made.save(tmp_path / "000001", keep=2)
    again = trainer(model, **SETTINGS)
    again.resume(tmp_path / "000001")
    assert equal(weights(again), weights(made))
    for one in (made, again):
        one.learn(batch_of(one, seed=5))
    assert equal(weights(again), weights(made))


@pytest.fixture(scope="module")
def whole(model: str, tasks: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return orchestry.train(config(model, tasks, *FULL), tmp_path_factory.mktemp("full") / "run")


@pytest.mark.slow
def test_a_run_goes_on_is_evaluated_and_exported(
    whole: Run, model: str, tasks: Path, tmp_path: Path
) -> None:
    part = orchestry.train(config(model, tasks, *FULL, "episodes=6"), tmp_path / "run")
    resume(part.folder, {"episodes": 8})
    assert artefacts(part.folder) == artefacts(whole.folder)
    last = Path("checkpoints", "000008")
    for role in ROLES:
        files = [(run.folder / last / role / WEIGHTS).read_bytes() for run in (part, whole)]
        assert files[0] == files[1]
    found = orchestry.evaluate(whole)
    assert found.config["learn"]["from"] == str(whole.folder / last)
    exported = export(whole.folder, tmp_path / "out")
    for role in ROLES:
        plain: Any = transformers.AutoModelForCausalLM.from_pretrained(exported.folder / role)
        saved = trainer(model, **SETTINGS)
        saved.start_from(whole.folder / last)
        (crew,) = (crew for crew in saved.crews if role in crew.roles)
        assert equal([*plain.parameters()], crew.adapters.parameters())
        text = (exported.folder / role / "README.md").read_text()
        assert "with all of its weights trained, in float32" in text
        assert not (exported.folder / role / FACTS).exists()
    with pytest.raises(ConfigError, match="nothing can be merged: leave out --merge"):
        export(whole.folder, tmp_path / "merged", merge=True)
    assert learned(whole)[-1].state["entropy"] > 0


def test_another_run_starts_from_the_weights(
    whole: Run, model: str, tasks: Path, tmp_path: Path
) -> None:
    source = f"learn.from={whole.folder / 'checkpoints' / '000008'}"
    run = orchestry.train(config(model, tasks, *FULL, source, "episodes=4"), tmp_path / "run")
    assert len(learned(run)) == 1
    assert (run.folder / "start" / "left" / WEIGHTS).is_file()
    with pytest.raises(ConfigError, match=r"holds no adapters, but full weights \(learn\.method="):
        orchestry.train(config(model, tasks, source), tmp_path / "lora")
    with pytest.raises(ConfigError, match=r"holds full weights .* only adapters can be taken over"):
        team_of(whole.folder)


def test_what_is_damaged_or_of_another_base_is_refused(model: str, tmp_path: Path) -> None:
    made = trainer(model, **SETTINGS)
    made.save(tmp_path / "000001", keep=2)
    other = str(tiny_folder(tmp_path / "other", "llama", seed=3, hidden=64))
    with pytest.raises(ConfigError, match=r"began as another base than .*other"):
        trainer(other, **SETTINGS).start_from(tmp_path / "000001")
    with pytest.raises(ConfigError, match=r"do not fit the base .*: .* expected"):
        trainer(other, **SETTINGS).start_from(tmp_path / "000001", any_base=True)
    with pytest.raises(StoreError, match=r"no full weights of left: .* learn\.method=lora"):
        made.start_from(tmp_path)
    (tmp_path / "000001" / "left" / WEIGHTS).write_bytes(b"half")
    with pytest.raises(StoreError, match="its content is not what was written"):
        made.start_from(tmp_path / "000001")


@pytest.mark.parametrize(
    "other",
    [
        *({"quantize": "nf4"}, {"kl": 0.1}, {"rank": 4}, {"dropout": 0.1}, {"targets": ["q_proj"]}),
        *({"vllm_url": "http://127.0.0.1:1"}, {"dtype": "bfloat16"}, {"baseline": "critic"}),
    ],
)
def test_settings_of_adapters_are_refused(other: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match=f"learn.method=full .*learn.{next(iter(other))}="):
        LearnConfig.model_validate({"method": "full", **other})


def test_copies_that_can_not_fit_are_refused_before_they_are_loaded(model: str) -> None:
    base = trainer(model, **SETTINGS).crews[0].base
    with pytest.raises(ConfigError, match=r"keeps 10{9} copies .* GB free: set learn\.shared=true"):
        check_memory(base, 10**9, learns=True)
    assert isinstance(trainer(model, **SETTINGS).crews[0].adapters, FullWeights)
