"""Compares second moments with a loop over the samples; tests the arguments of a State."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import torch.nn as nn  # noqa: E402
import torch.nn.functional as F  # noqa: E402

import thinreduce  # noqa: E402


class Tokens(nn.Module):
    """A linear layer that every sample uses at several positions."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(6, 5)

    def forward(self, x):
        return torch.tanh(self.inner(x.reshape(x.shape[0], -1, 6))).sum(1)


MODELS = {
    "linear": (nn.Sequential(nn.Linear(12, 7), nn.Tanh(), nn.Linear(7, 5)), (12,)),
    "no bias": (nn.Sequential(nn.Linear(12, 5, bias=False)), (12,)),
    "tokens": (Tokens(), (4, 6)),
    "conv": (
        nn.Sequential(
            nn.Conv2d(2, 4, 3),
            nn.ReLU(inplace=True),
            nn.Conv2d(4, 3, 2),
            nn.Flatten(),
            nn.Linear(3 * 16, 5),
        ),
        (2, 7, 7),
    ),
    "stride, padding, dilation": (
        nn.Sequential(
            nn.Conv2d(2, 6, (3, 2), stride=(2, 3), padding=(1, 2), dilation=(2, 1)),
            nn.Flatten(),
            nn.LazyLinear(5),
        ),
        (2, 10, 9),
    ),
    "groups": (
        nn.Sequential(nn.Conv2d(4, 6, 3, groups=2, padding=1), nn.Flatten(), nn.LazyLinear(5)),
        (4, 5, 6),
    ),
    "same padding": (
        nn.Sequential(nn.Conv2d(1, 3, 4, padding="same"), nn.Flatten(), nn.LazyLinear(5)),
        (1, 6, 5),
    ),
    "circular": (
        nn.Sequential(
            nn.Conv2d(1, 3, 3, padding=1, padding_mode="circular"), nn.Flatten(), nn.LazyLinear(5)
        ),
        (1, 6, 5),
    ),
    "conv1d": (
        nn.Sequential(
            nn.Conv1d(2, 4, 3, stride=2, padding=1, groups=2), nn.Flatten(), nn.LazyLinear(5)
        ),
        (2, 11),
    ),
    "norm": (nn.Sequential(nn.Linear(12, 8), nn.LayerNorm(8), nn.Linear(8, 5)), (12,)),
}


@pytest.mark.parametrize("name", MODELS)
def test_moments_are_those_of_a_loop_over_samples(name):
    torch.manual_seed(3)
    model, shape = MODELS[name]
    x, y = torch.randn(6, *shape), torch.randint(0, 5, (6,))
    model(x)  # lazy layers take their size
    moments = thinreduce.SecondMoment(model)
    F.cross_entropy(model(x), y).backward()
    found = {name: moments.of(one) for name, one in model.named_parameters()}
    moments.close()
    expected = {name: torch.zeros_like(one) for name, one in model.named_parameters()}
    for sample in range(len(x)):
        model.zero_grad()
        loss = F.cross_entropy(model(x[sample : sample + 1]), y[sample : sample + 1])
        (loss / len(x)).backward()
        for name, one in model.named_parameters():
            expected[name] += one.grad.square()
    followed = 0
    for name, moment in found.items():
        if moment is None:
            assert expected[name].dim() == 1, name
            continue
        followed += 1
        torch.testing.assert_close(moment, expected[name], rtol=1e-4, atol=1e-8)
    assert followed >= 1


def test_moments_add_up_until_they_are_used():
    torch.manual_seed(3)
    layer = nn.Linear(4, 3)
    moments = thinreduce.SecondMoment(layer)
    x = torch.randn(5, 4)
    layer(x).sum().backward()
    once = moments.of(layer.weight).clone()
    layer(x).sum().backward()
    torch.testing.assert_close(moments.of(layer.weight), 2 * once)


def test_unknown_layers_are_named():
    with pytest.raises(thinreduce.BadInput, match=r"'0\.weight' of Embedding"):
        thinreduce.SecondMoment(nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 3)))


def test_sketch_refuses_momentum_that_would_be_applied_again():
    model = nn.Linear(4, 3)
    spec = "sketch:momentum=0.9"
    with pytest.raises(thinreduce.BadSpec, match="applies momentum itself"):
        thinreduce.State(spec)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    with pytest.raises(thinreduce.BadSpec, match=r"SGD would .* \(0\.9 in parameter group 0\)"):
        thinreduce.State(spec, optimizer=optimizer)
    with pytest.raises(thinreduce.BadSpec, match="Adam would apply its own"):
        thinreduce.State(spec, optimizer=torch.optim.Adam(model.parameters()))
    thinreduce.State(spec, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    thinreduce.State(spec, momentum_inside_ok=True)
    thinreduce.State("sketch")
    thinreduce.State("topk", optimizer=torch.optim.Adam(model.parameters()))


def test_states_check_what_they_are_given():
    with pytest.raises(thinreduce.BadSpec, match="topk"):
        thinreduce.State("tpok")
    with pytest.raises(thinreduce.BadSpec, match="mix"):
        thinreduce.State({"fc.*": "sketch:momentum=0.9", "*": "dqsg"}, momentum_inside_ok=True)
    with pytest.raises(thinreduce.BadInput, match="link"):
        thinreduce.State("dqsg", link="fast")
    with pytest.raises(thinreduce.BadInput, match="negative"):
        thinreduce.State("dqsg", warmup_steps=-1)
    with pytest.raises(thinreduce.BadState, match="before the first step"):
        thinreduce.State("dqsg").state_dict()
    with pytest.raises(thinreduce.BadInput, match="init_process_group"):
        thinreduce.State("dqsg").connect()
