"""The chunked delta rule equals the token loop, forward and backward. Needs torch."""

import pytest

torch = pytest.importorskip("torch")

from models.sprout.delta import chunked_gated_delta, step_gated_delta  # noqa: E402


def _inputs(length: int, seed: int = 0) -> list:
    rng = torch.Generator().manual_seed(seed)
    q, k = (torch.randn(2, length, 3, 16, generator=rng) for _ in range(2))
    v = torch.randn(2, length, 3, 24, generator=rng)
    g = -torch.rand(2, length, 3, generator=rng) * 0.3
    beta = torch.rand(2, length, 3, generator=rng)
    return [x.double().requires_grad_() for x in (q, k, v, g, beta)]


def _loop(q, k, v, g, beta, state):
    out = []
    for t in range(q.shape[1]):
        y, state = step_gated_delta(q[:, t], k[:, t], v[:, t], g[:, t], beta[:, t], state)
        out.append(y)
    return torch.stack(out, dim=1), state


@pytest.mark.parametrize("length", [1, 64, 65, 200])
def test_chunks_equal_the_loop_over_tokens_with_gradients(length: int) -> None:
    inputs = _inputs(length)
    state = torch.randn(2, 3, 16, 24, generator=torch.Generator().manual_seed(1))
    weight = torch.randn(2, length, 3, 24, generator=torch.Generator().manual_seed(2))

    def total(result):
        return (result[0] * weight).sum() + result[1].square().sum()

    want = torch.autograd.grad(total(_loop(*inputs, state)), inputs)
    got = torch.autograd.grad(total(chunked_gated_delta(*inputs, state)), inputs)
    for name, a, b in zip("qkvgb", want, got):
        assert (a - b).abs().max() < 1e-4 * (1 + a.abs().max()), name


def test_repeated_keys_stay_exact_where_powers_would_overflow() -> None:
    q, k, v, g, beta = (x.detach() for x in _inputs(128))
    k = k[:, :1].expand_as(k)
    g, beta = torch.zeros_like(g), torch.ones_like(beta)
    want, _ = _loop(q, k, v, g, beta, torch.zeros(2, 3, 16, 24))
    got, _ = chunked_gated_delta(q, k, v, g, beta)
    assert (want - got).abs().max() < 1e-4


def test_gated_off_tokens_leave_the_state_alone() -> None:
    q, k, v, g, beta = (x.detach() for x in _inputs(100))
    is_real = torch.arange(100)[None, :, None] < 70
    _, padded = chunked_gated_delta(q, k, v, g * is_real, beta * is_real)
    _, short = chunked_gated_delta(*(x[:, :70] for x in (q, k, v, g, beta)))
    assert (padded - short).abs().max() < 1e-6
