"""A mixture of experts: which ones a token chooses, and what those add."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from embedlib.engines.cuda import kernels, reference
from embedlib.engines.cuda.lowering import build_plan
from embedlib.engines.cuda.plan import ActivateExperts, ChooseExperts, Linear
from embedlib.models.encoder_parts import Experts
from embedlib.testing import fake_spec
from tests.engines.cuda.seeded import numbers

# In the interpreter, numpy warns about operations that a GPU computes silently.
pytestmark = pytest.mark.filterwarnings(
    "ignore:(overflow|invalid value|divide|All-NaN):RuntimeWarning"
)


def shares_of(source: torch.Tensor, router: torch.Tensor, num_chosen: int) -> NDArray[np.float64]:
    """Return each expert's share by softmax where fewer than `num_chosen` have a larger one."""
    logits = source.double().cpu().numpy() @ router.double().cpu().numpy().T
    shares = np.exp(logits - logits.max(axis=1, keepdims=True))
    shares /= shares.sum(axis=1, keepdims=True)
    least = np.sort(shares, axis=1)[:, -num_chosen][:, None]
    return np.where(shares >= least, shares, 0)


@pytest.mark.parametrize("module", [kernels, reference])
@pytest.mark.parametrize(("count", "num_chosen"), [(8, 2), (5, 1), (4, 4)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_token_chooses_its_largest_shares(
    module: Any, count: int, num_chosen: int, dtype: torch.dtype, device: torch.device
) -> None:
    source, router = numbers(device, 7, 40).to(dtype), numbers(device, count, 40) / 4
    source[3] = torch.nan
    out = torch.full((7, count), -1.0, device=device)
    module.choose_experts(source, router, num_chosen, out)
    assert out[3].isnan().any()
    others = [0, 1, 2, 4, 5, 6]
    expected = torch.from_numpy(shares_of(source[others], router, num_chosen)).to(device)
    torch.testing.assert_close(out[others].double(), expected, rtol=1e-5, atol=1e-6)
    assert ((out[others] > 0).sum(dim=1) == num_chosen).all()


@pytest.mark.parametrize("module", [kernels, reference])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_activations_are_weighed_expert_by_expert(
    module: Any, dtype: torch.dtype, device: torch.device
) -> None:
    values = numbers(device, 3, 4 * 40).to(dtype)
    shares = torch.tensor([[0.5, 0, 0.25, 0], [0, 0, 0, 1], [torch.nan] * 4], device=device)
    given = values.double().unflatten(1, (4, 40))
    expected = torch.nn.functional.gelu(given) * shares[:, :, None].double()
    module.activate_experts(values, shares, "gelu")
    found = values.double().unflatten(1, (4, 40))
    step = 1e-6 if dtype == torch.float32 else 2**-8
    torch.testing.assert_close(found, expected, rtol=step, atol=step, equal_nan=True)


def test_layers_with_experts_and_those_without() -> None:
    spec = fake_spec()
    encoder = replace(spec.encoder, num_layers=3, windows=(None,) * 3, is_gated=False)
    encoder = replace(encoder, experts=Experts(count=4, num_chosen=2, layers=(1,)))
    plan = build_plan(replace(spec, encoder=encoder))
    for number, layer in enumerate(plan.layers):
        kinds = {type(step) for step in layer}
        assert ({ChooseExperts, ActivateExperts} <= kinds) == (number == 1)
        roles = [role for step in layer if isinstance(step, Linear) for role in step.roles]
        leaves = ["experts_up", "experts_down"] if number == 1 else ["up", "down"]
        assert [role.rpartition(".")[2] for role in roles[-2:]] == leaves
    choose = next(step for step in plan.layers[1] if isinstance(step, ChooseExperts))
    assert (choose.out.columns, choose.out.numbers) == (4, "float32")
