"""Compares second moments with a loop over the samples; tests the arguments of a State."""

from __future__ import annotations

import itertools
import sys

import pytest

torch = pytest.importorskip("torch")

import torch.nn as nn  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from thinreduce.groups import Member  # noqa: E402
from thinreduce.names import Names  # noqa: E402

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
    "norm of a matrix": (
        nn.Sequential(nn.LayerNorm((3, 4)), nn.Flatten(), nn.Linear(12, 5)),
        (3, 4),
    ),
}


# With one sample per group, estimates are exact.
@pytest.mark.parametrize("groups", [0, 6])
@pytest.mark.parametrize("name", MODELS)
def test_moments_are_those_of_a_loop_over_samples(name, groups):
    torch.manual_seed(3)
    model, shape = MODELS[name]
    x, y = torch.randn(6, *shape), torch.randint(0, 5, (6,))
    model(x)  # lazy layers take their size
    moments = thinreduce.SecondMoment(model, groups=groups)
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


@pytest.mark.parametrize("name", ["tokens", "groups", "conv1d"])
def test_estimates_from_groups_are_right_on_average(name):
    """The mean over all orders of a batch is the exact second moment."""
    torch.manual_seed(4)
    model, shape = MODELS[name]
    x, y = torch.randn(5, *shape), torch.randint(0, 5, (5,))
    model(x)

    def moments_of(order, groups):
        moments = thinreduce.SecondMoment(model, groups=groups)
        F.cross_entropy(model(x[order]), y[order]).backward()
        found = {name: moments.of(one).double() for name, one in model.named_parameters()}
        moments.close()
        return found

    exact = moments_of(list(range(5)), 0)
    orders = list(itertools.permutations(range(5)))
    for groups in (2, 3):
        estimates = [moments_of(list(order), groups) for order in orders]
        for parameter, expected in exact.items():
            found = torch.stack([one[parameter] for one in estimates])
            assert found.min() >= 0
            torch.testing.assert_close(found.mean(0), expected, rtol=1e-4, atol=1e-8)


def test_one_group_is_refused():
    for groups in (1, -1, 2.5):
        with pytest.raises(thinreduce.errors.BadInput, match="groups must be"):
            thinreduce.SecondMoment(nn.Linear(2, 2), groups=groups)


def test_moments_add_up_until_they_are_used():
    torch.manual_seed(3)
    layer = nn.Linear(4, 3)
    moments = thinreduce.SecondMoment(layer)
    x = torch.randn(5, 4)
    layer(x).sum().backward()
    once = moments.of(layer.weight).clone()
    layer(x).sum().backward()
    torch.testing.assert_close(moments.of(layer.weight), 2 * once)


class Attention(nn.Module):
    """A small transformer block for tokens, without dropout."""

    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(11, 8, padding_idx=0)
        self.block = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.head = nn.Linear(8, 5)

    def forward(self, x):
        return self.head(self.block(self.tokens(x)).mean(1))


def moments_of_one_step(model, loss):
    """Returns a model's second moments, gathered as the hook does, and the names that lack one."""
    moments = thinreduce.SecondMoment(model)
    names, result = Names(), {}
    names.bind(model.named_parameters())
    loss().backward()
    for name, one in model.named_parameters():
        member = Member(name, tuple(one.shape), 0, one.numel())
        buffer = torch.empty(one.numel())
        result[name] = moments.gather([member], buffer, names, one.grad.flatten()).view(one.shape)
    moments.close()
    return result, moments.missing


def loop_over_samples(model, loss, samples):
    expected = {name: torch.zeros_like(one) for name, one in model.named_parameters()}
    for sample in range(samples):
        model.zero_grad()
        (loss(slice(sample, sample + 1)) / samples).backward()
        for name, one in model.named_parameters():
            expected[name] += one.grad.square()
    return expected


def test_a_transformer_has_moments_and_the_rest_is_named():
    torch.manual_seed(3)
    model = Attention()
    x, y = torch.randint(0, 11, (6, 7)), torch.randint(0, 5, (6,))

    def loss(part=slice(None)):
        return F.cross_entropy(model(x[part]), y[part])

    found, missing = moments_of_one_step(model, loss)
    gradients = {name: one.grad.clone() for name, one in model.named_parameters()}
    expected = loop_over_samples(model, loss, len(x))
    attention = "block.self_attn."
    assert missing == {
        attention + name
        for name in ("in_proj_weight", "in_proj_bias", "out_proj.weight", "out_proj.bias")
    }
    for name, moment in found.items():
        # The gradient of the step counts as one sample where samples can't be told apart.
        right = gradients[name].square() if name in missing else expected[name]
        torch.testing.assert_close(moment, right, rtol=1e-4, atol=1e-9)


@pytest.mark.parametrize("options", [{}, {"padding_idx": 2}, {"scale_grad_by_freq": True}])
def test_embeddings_add_up_the_uses_of_a_sample(options):
    torch.manual_seed(3)
    layer = nn.Embedding(5, 3, **options)
    for shape in ((6,), (6, 4), (6, 2, 3), ()):
        x = torch.randint(0, 5, shape)
        weights = torch.randn(*shape, 3)
        layer.zero_grad()
        found, missing = moments_of_one_step(layer, lambda x=x, w=weights: (layer(x) * w).sum())
        assert not missing
        rows = x.reshape(x.shape[0] if shape else 1, -1)
        parts = weights.reshape(*rows.shape, 3)
        expected = torch.zeros(5, 3)
        for row, part in zip(rows, parts):
            one = torch.zeros(5, 3)
            for index, value in zip(row, part):
                if options.get("padding_idx") != index:
                    count = (x == index).sum() if options.get("scale_grad_by_freq") else 1
                    one[index] += value / count
            expected += one.square()
        torch.testing.assert_close(found["weight"], expected, rtol=1e-4, atol=1e-9)


def test_an_input_without_a_batch_is_one_sample():
    torch.manual_seed(3)
    for layer, x in (
        (nn.Linear(4, 3), torch.randn(4)),
        (nn.Conv1d(2, 3, 3), torch.randn(2, 7)),
        (nn.Conv2d(2, 3, 3, padding=1), torch.randn(2, 5, 6)),
        (nn.LayerNorm((3, 4)), torch.randn(3, 4)),
    ):
        weights = torch.randn_like(layer(x))
        found, missing = moments_of_one_step(
            layer, lambda m=layer, x=x, w=weights: (m(x) * w).sum()
        )
        assert not missing
        for name, one in layer.named_parameters():
            torch.testing.assert_close(found[name], one.grad.square(), rtol=1e-4, atol=1e-9)


class Doubled(nn.Linear):
    """Computes something else than its base."""

    def forward(self, x):
        return 2 * super().forward(x)


class Plain(nn.Linear):
    """Computes the same as its base."""


def test_subclasses_count_as_their_base_unless_they_compute_something_else():
    torch.manual_seed(3)
    x = torch.randn(5, 4)
    for kind, known in ((Plain, True), (Doubled, False)):
        layer = kind(4, 3)
        found, missing = moments_of_one_step(layer, lambda m=layer: m(x).square().mean())
        gradient = layer.weight.grad.clone()
        assert missing == (set() if known else {"weight", "bias"})
        expected = loop_over_samples(layer, lambda p, m=layer: m(x[p]).square().mean(), 5)
        right = expected["weight"] if known else gradient.square()
        torch.testing.assert_close(found["weight"], right, rtol=1e-4, atol=1e-9)


def test_layers_that_get_their_input_as_a_keyword():
    torch.manual_seed(3)
    layer = nn.Linear(4, 3)
    x = torch.randn(5, 4)
    # One use has an input, the other has not before torch 2.0: the parameter is then named.
    found, missing = moments_of_one_step(
        layer, lambda: layer(input=x).square().mean() + layer(x).sum()
    )
    if torch.__version__ < "2":
        assert missing == {"weight", "bias"}
        torch.testing.assert_close(found["weight"], layer.weight.grad.square())
    else:
        assert not missing
    found, missing = moments_of_one_step(layer, lambda: layer(x).square().mean())
    assert not missing


def test_recurrent_layers_and_frozen_weights():
    torch.manual_seed(3)
    model = nn.LSTM(4, 3, batch_first=True)
    found, missing = moments_of_one_step(model, lambda: torch.sum(model(torch.randn(5, 6, 4))[0]))
    assert missing == {name for name, _ in model.named_parameters()}
    for name, one in model.named_parameters():
        torch.testing.assert_close(found[name], one.grad.square())
    layer = nn.utils.weight_norm(nn.Linear(4, 3))  # its weight is no parameter
    _, missing = moments_of_one_step(layer, lambda: layer(torch.randn(5, 4)).square().sum())
    assert missing == {"weight_g", "weight_v"}


def test_squares_that_overflow_are_the_largest_float():
    layer = nn.Linear(4, 3, bias=False)
    found, _ = moments_of_one_step(layer, lambda: torch.sum(layer(torch.ones(1, 4)) * 1e25))
    assert (found["weight"] == torch.finfo(torch.float32).max).all()


def test_sketch_refuses_momentum_that_would_be_applied_again():
    model = nn.Linear(4, 3)
    spec = "sketch:momentum=0.9"
    with pytest.raises(thinreduce.BadSpec, match="applies momentum itself"):
        thinreduce.State(spec)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    with pytest.raises(thinreduce.BadSpec, match=r"SGD would .* \(0\.9 in parameter group 0\)"):
        thinreduce.State(spec, optimizer=optimizer)
    text = r"Adam would apply its own \(betas\[0\] = 0\.9 in .* group 0\) again: use SGD with mom"
    with pytest.raises(thinreduce.BadSpec, match=text):
        thinreduce.State(spec, optimizer=torch.optim.Adam(model.parameters()))
    decaying = torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=0.01)
    with pytest.raises(thinreduce.BadSpec, match=r"weight decay of SGD \(0\.01 in .* group 0\)"):
        thinreduce.State(spec, optimizer=decaying)
    thinreduce.State(spec, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    thinreduce.State(spec, momentum_inside_ok=True)
    thinreduce.State("sketch")
    thinreduce.State("topk", optimizer=torch.optim.Adam(model.parameters()))
    # Signs of a mean leave weight decay to the optimizer, which must be SGD.
    with pytest.raises(thinreduce.BadSpec, match="or use sign=off in the spec"):
        thinreduce.State("demo:sign=on")
    thinreduce.State("demo:sign=on", optimizer=decaying)
    with pytest.raises(thinreduce.BadSpec, match="the optimizer is RMSprop: use SGD, or sign=off"):
        thinreduce.State("demo:sign=on", optimizer=torch.optim.RMSprop(model.parameters()))


def test_things_of_a_wrong_type_are_refused_by_name():
    model = nn.Linear(4, 3)
    module = "model must be a torch.nn.Module; it is 3"
    for work, text in (
        (lambda: thinreduce.State("dqsg", model=3), module),
        (lambda: thinreduce.State("dqsg").bind(3), module),
        (lambda: thinreduce.LocalSteps(3, "dqsg"), module),
        (lambda: thinreduce.SecondMoment(3), module),
        (lambda: thinreduce.fsdp.attach(3, "dqsg"), module),
        (lambda: thinreduce.State("dqsg", optimizer=3), "optimizer must be a torch.* it is 3"),
        (lambda: thinreduce.State("variance", second_moment=3), "second_moment must be a .*; it"),
        (lambda: thinreduce.State("dqsg", process_group=3), "process_group must be .* it is 3"),
        (lambda: thinreduce.LocalSteps(model, process_group=3), "process_group must be"),
        (lambda: thinreduce.State("dqsg", secret=3), "secret must be a string or None; it is of"),
        (lambda: thinreduce.State("dqsg", guard_factor="x"), "guard_factor must be .* it is 'x'"),
        (lambda: thinreduce.LocalSteps(model, outer=3), "outer must be a string; it is 3"),
        (lambda: thinreduce.State("dqsg").reconfigure(3), "process_group must be"),
        (lambda: thinreduce.huggingface.attach(3), "trainer must be a transformers.Trainer"),
    ):
        with pytest.raises(thinreduce.BadInput, match=text):
            work()


def test_a_missing_library_of_hugging_face_is_named(monkeypatch):
    class Trainer:
        def add_callback(self, callback):
            raise AssertionError(callback)

    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(thinreduce.Unavailable, match="pip install transformers"):
        thinreduce.huggingface.attach(Trainer())


def test_the_second_moment_is_defined_with_the_size_of_the_batch():
    # With the squares of the samples' own gradients, variance sends nothing.
    (alpha, full) = (
        one.help
        for method in thinreduce.methods()
        if method.name == "variance"
        for one in method.options
        if one.name in ("alpha", "full")
    )
    for text in (alpha, full):
        assert "(per-sample gradient / batch size)^2" in text
    for text in (thinreduce.SecondMoment.__doc__, thinreduce.Comm.all_reduce_mean.__doc__):
        assert "(gradient of the sample / batch size) squared" in " ".join(text.split())


def test_states_check_what_they_are_given():
    with pytest.raises(thinreduce.BadSpec, match="topk"):
        thinreduce.State("tpok")
    with pytest.raises(thinreduce.BadSpec, match="mix"):
        thinreduce.State({"fc.*": "sketch:momentum=0.9", "*": "dqsg"}, momentum_inside_ok=True)
    with pytest.raises(thinreduce.BadInput, match="link"):
        thinreduce.State("dqsg", link="fast")
    with pytest.raises(thinreduce.BadInput, match="warmup_steps must be a whole number"):
        thinreduce.State("dqsg", warmup_steps=-1)
    with pytest.raises(thinreduce.BadInput, match="nonfinite must be 'skip' or 'raise'"):
        thinreduce.State("dqsg", nonfinite="ignore")
    with pytest.raises(thinreduce.BadState, match="before the first step"):
        thinreduce.State("dqsg").state_dict()
    with pytest.raises(thinreduce.BadInput, match="init_process_group"):
        thinreduce.State("dqsg").connect()
