#!/usr/bin/env python3
"""Times DDP's gradient exchange: plain DDP, torch's own hooks and thinreduce.

    bench/ddp_link.py                     runs all ranks on this machine, unthrottled
    sudo bench/ddp_link.py --rate 1gbit   gives each rank its own network namespace, with a link
                                          that tc shapes both ways (needs root, ip and tc)

The model has the parameters of ResNet-50 (25.6 M) and computes nothing: its gradients are random
numbers that exist before the step, so the time of a step is the time of the exchange. All methods
run in the same processes, one after another in each round. The times are those of the slowest rank.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import sys

from local_ranks import leave, parse, reports, time_on_all, time_rounds
from namespaces import Namespaces

METHODS = ["default", "fp32", "dqsg:levels=7", "gradiveq", "torch:fp16", "torch:powersgd"]


def resnet50_shapes() -> list[tuple[int, ...]]:
    shapes: list[tuple[int, ...]] = [(64, 3, 7, 7), (64,), (64,)]
    inputs = 64
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(blocks):
            for shape in ((width, inputs, 1, 1), (width, width, 3, 3), (4 * width, width, 1, 1)):
                shapes += [shape, shape[:1], shape[:1]]
            if block == 0:
                shapes += [(4 * width, inputs, 1, 1), (4 * width,), (4 * width,)]
            inputs = 4 * width
    return [*shapes, (1000, 2048), (1000,)]


def run_rank(args: argparse.Namespace) -> None:
    import torch
    import torch.distributed as dist
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
    from torch.nn.parallel import DistributedDataParallel

    import thinreduce

    class Layers(torch.nn.Module):
        """Parameters whose gradients are given."""

        def __init__(self, gradients: list[torch.Tensor]) -> None:
            super().__init__()
            self.weights = torch.nn.ParameterList([torch.zeros(g.shape) for g in gradients])
            self.gradients = gradients

        def forward(self) -> torch.Tensor:
            pairs = zip(self.weights, self.gradients)
            return sum(Given.apply(weight, gradient) for weight, gradient in pairs)

    class Given(torch.autograd.Function):
        @staticmethod
        def forward(ctx, weight, gradient):
            ctx.gradient = gradient
            return weight.new_zeros(())

        @staticmethod
        def backward(ctx, _):
            return ctx.gradient, None

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    generator = torch.Generator().manual_seed(rank)
    gradients = [1e-3 * torch.randn(one, generator=generator) for one in resnet50_shapes()]
    models, states = {}, {}
    for method in args.method:
        # torch's PowerSGD starts its exchanges from callbacks. With more than one bucket their
        # order differs between ranks, and Gloo ends the process.
        one_bucket = {"bucket_cap_mb": 1000} if method == "torch:powersgd" else {}
        dist._DEFAULT_FIRST_BUCKET_BYTES = (1000 if one_bucket else 1) << 20
        model = DistributedDataParallel(
            Layers(gradients), gradient_as_bucket_view=True, **one_bucket
        )
        if method == "torch:fp16":
            model.register_comm_hook(None, default_hooks.fp16_compress_hook)
        elif method == "torch:powersgd":  # matrix rank 1; by default it starts after 1,000 steps
            state = powerSGD_hook.PowerSGDState(None, start_powerSGD_iter=2)
            model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
        elif method != "default":
            states[method] = thinreduce.State(
                method, momentum_inside_ok=True, link=args.link, transport=args.transport
            )
            model.register_comm_hook(states[method], thinreduce.hook)
        models[method] = model

    def step(method: str) -> float:
        return time_on_all(lambda: models[method]().backward())

    time_rounds(args.method, step, warmup=args.warmup, steps=0)
    # Some methods send uncompressed steps first, to learn from them.
    for method, state in states.items():
        for _ in range(0 if method == "fp32" else args.max_warmup):
            compresses = [state.stats()["ratio"] > 1.5]
            dist.broadcast_object_list(compresses)
            if compresses[0]:
                break
            step(method)
    times = time_rounds(args.method, step, warmup=0, steps=args.steps)
    if rank == 0:
        for method in args.method:
            report = {
                "method": method,
                "seconds": statistics.median(times[method]),
                "min": min(times[method]),
                "max": max(times[method]),
                "speedup": statistics.median(times["default"]) / statistics.median(times[method]),
            }
            if method in states:
                report["sent"] = states[method].stats()["bytes_sent"]
            print(json.dumps(report), flush=True)
    leave(states.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument(
        "--rate", default="", help="rate of each rank's link for tc, such as 1gbit; needs root"
    )
    parser.add_argument("--link", default="", help="link that thinreduce emulates, without root")
    parser.add_argument(
        "--transport", default="auto", choices=["auto", "gloo", "torch"], help="of thinreduce"
    )
    parser.add_argument(
        "--max-warmup", type=int, default=20, help="more untimed steps, until it compresses"
    )
    args = parse(parser, METHODS, steps=5, warmup=4)
    if "default" not in args.method:
        args.method.insert(0, "default")
    if args.inside:
        run_rank(args)
        return
    if args.rate and os.geteuid() != 0:
        sys.exit("ddp_link: --rate needs root, for network namespaces and tc; use --link instead")
    network = Namespaces(args.ranks, args.rate)
    with network if args.rate else contextlib.nullcontext():
        where = f"links of {args.rate}" if args.rate else "this machine, unthrottled"
        print(f"25.6 M parameters, {args.ranks} ranks, {where}\n")
        print(f"{'method':18} {'median':>9} {'min':>9} {'max':>9} {'vs default':>11}   sent")
        found = reports(
            args.ranks,
            address=network.address(0),
            environment={"GLOO_SOCKET_IFNAME": "eth0"} if args.rate else {},
            within=lambda rank: network.within(rank) if args.rate else [],
        )
        for one in found:
            sent = f"{one['sent'] / 1e6:8.1f} MB" if "sent" in one else ""
            print(
                f"{one['method']:18} {one['seconds']:7.3f} s {one['min']:7.3f} s "
                f"{one['max']:7.3f} s {one['speedup']:10.2f}x {sent}"
            )


if __name__ == "__main__":
    main()
