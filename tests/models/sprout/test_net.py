"""sprout's network equals transformers' Qwen3.5, and decodes ragged batches. Needs torch."""

import pytest

torch = pytest.importorskip("torch")

from models.sprout.config import SPROUT, TINY, num_parameters, text_config  # noqa: E402
from models.sprout.decode import greedy  # noqa: E402
from models.sprout.net import Sprout, initialize  # noqa: E402


@pytest.fixture
def model():
    model = Sprout(TINY)
    initialize(model, seed=3)
    rng = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "norm" in name:  # away from 1, or a missing shift would not show
                weight.add_(torch.randn(weight.shape, generator=rng) * 0.2)
            elif "embed" not in name:
                weight.mul_(2.0)
    return model


def _ids(*shape: int):
    return torch.randint(0, 4096, shape, generator=torch.Generator().manual_seed(5))


def test_parameters_are_counted_right() -> None:
    for shape in (TINY, SPROUT):
        assert num_parameters(shape) == sum(p.numel() for p in Sprout(shape).parameters())


def test_logits_equal_those_of_transformers(model) -> None:
    transformers = pytest.importorskip("transformers")
    fields = {k: v for k, v in text_config(TINY).items() if k != "model_type"}
    theirs = transformers.Qwen3_5ForCausalLM(transformers.Qwen3_5TextConfig(**fields)).eval()
    missing, unexpected = theirs.load_state_dict(model.state_dict(), strict=False)
    assert (missing, unexpected) == (["lm_head.weight"], [])
    ids = _ids(2, 150)
    with torch.no_grad():
        want, got = theirs(ids).logits, model.logits(model(ids))
    assert (want - got).abs().max() < 1e-4
    assert want.std() > 0.1


def test_ragged_rows_decode_as_if_alone(model) -> None:
    ids, lengths = _ids(3, 140), torch.tensor([140, 64, 97])
    said = _ids(3, 4)
    logits, cache = model.prefill(ids, lengths, num_new=4)
    for i in range(4):
        logits = model.step(said[:, i], cache)
    for row in range(3):
        alone = torch.cat([ids[row, : lengths[row]], said[row]])[None]
        with torch.no_grad():
            want = model.logits(model(alone))[0, -1]
        assert (want - logits[row]).abs().max() < 1e-4


def test_greedy_replies_stop_at_the_end_mark_in_the_order_of_the_prompts(model) -> None:
    prompts = [_ids(n).numpy().astype("int32") for n in (70, 20, 130, 5)]
    alone = [greedy(model, [p], end_id=-1, max_new=6, batch_tokens=1)[0] for p in prompts]
    together = greedy(model, prompts, end_id=-1, max_new=6, batch_tokens=300)
    assert together == alone
    end_id = alone[2][3]
    cut = greedy(model, prompts, end_id=end_id, max_new=6, batch_tokens=1000)
    assert cut[2] == alone[2][: alone[2].index(end_id)]
