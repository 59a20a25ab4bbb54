"""Train a small transformer from a dataset, and resume exactly after a kill.

    python examples/train.py data/corpus --checkpoint runs/model.pt --kill-at 230     # dies at step 230
    python examples/train.py data/corpus --checkpoint runs/model.pt --kill-at 230     # resumes, and ends

At the end it proves that the batches, those before and after the kill together, are those of an uninterrupted run.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

import guideloom as gl

Batch = dict[str, Tensor]


class Transformer(nn.Module):
    """A decoder of a few layers; nothing in it knows of the data."""

    def __init__(self, vocab_size: int, window: int, width: int, layers: int) -> None:
        super().__init__()
        self.token = nn.Embedding(vocab_size, width)
        self.position = nn.Embedding(window, width)
        nn.init.normal_(self.token.weight, std=0.02)
        nn.init.normal_(self.position.weight, std=0.02)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, nn.LayerNorm(width), enable_nested_tensor=False)
        self.register_buffer("future", nn.Transformer.generate_square_subsequent_mask(window), persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.token(tokens) + self.position.weight
        hidden = self.layers(hidden, mask=self.future, is_causal=True)
        return functional.linear(hidden, self.token.weight)


def loss_of(model: nn.Module, batch: Batch) -> Tensor:
    """Each position is to foretell the next token, where the mask asks for it."""
    tokens, asked = batch["tokens"], batch["loss_mask"][:, 1:].flatten()
    scores = model(tokens[:, :-1]).flatten(0, 1)
    losses = functional.cross_entropy(scores, tokens[:, 1:].flatten(), reduction="none")
    return (losses * asked).sum() / asked.sum()


def make_loader(dataset: gl.StreamDataset, args: argparse.Namespace) -> gl.StatefulDataLoader:
    return gl.StatefulDataLoader(
        dataset, batch_size=args.batch_size, shuffle=True, seed=17, prefetch=args.prefetch, drop_last=True
    )


def epochs(loader: gl.StatefulDataLoader) -> Iterator[Batch]:
    """Yield batches without end: each iteration over the loader is the next epoch, or the rest of a resumed one."""
    while True:
        yield from loader


def add_to_digest(digest: str, batch: Batch) -> str:
    """Return the digest of all batches up to this one."""
    data = b"".join(tensor.numpy().tobytes() for _, tensor in sorted(batch.items()))
    return hashlib.sha256(digest.encode() + data).hexdigest()


def save(path: Path, checkpoint: dict[str, object]) -> None:
    """Replace the checkpoint, so that a kill at any moment leaves the old one or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    torch.save(checkpoint, temporary)
    os.replace(temporary, path)


def show_losses(losses: list[float], num_bars: int = 10) -> None:
    size = -(-len(losses) // num_bars)
    means = [(i, sum(part) / len(part)) for i in range(0, len(losses), size) if (part := losses[i : i + size])]
    for i, mean in means:
        print(f"  steps from {i:4}: loss {mean:5.2f}  {'█' * round(40 * mean / means[0][1])}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="a dataset that write_dataset.py wrote")
    parser.add_argument("--checkpoint", type=Path, default=Path("runs/model.pt"), help="default: %(default)s")
    parser.add_argument("--steps", type=int, default=400, help="default: %(default)s")
    parser.add_argument("--save-every", type=int, default=50, help="steps; default: %(default)s")
    parser.add_argument("--kill-at", type=int, help="kill this process at some step, unless it has resumed")
    parser.add_argument("--window", type=int, default=128, help="default: %(default)s")
    parser.add_argument("--batch-size", type=int, default=8, help="default: %(default)s")
    parser.add_argument("--prefetch", type=int, default=16, help="batches to read ahead; default: %(default)s")
    parser.add_argument("--width", type=int, default=96, help="of the model; default: %(default)s")
    parser.add_argument("--layers", type=int, default=2, help="of the model; default: %(default)s")
    parser.add_argument("--threads", type=int, default=1, help="of torch; default: %(default)s")
    args = parser.parse_args()

    torch.manual_seed(0)
    torch.set_num_threads(args.threads)  # so small a model gains little from more, and loses much on a busy machine
    # A window has one token more than the model sees, so each position has its next one; windows share that.
    dataset = gl.open_dataset(args.folder, window=args.window + 1, stride=args.window)
    loader = make_loader(dataset, args)
    model = Transformer(dataset.manifest.metadata["vocab_size"], args.window, args.width, args.layers)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    losses: list[float] = []
    digest = ""

    resumed = args.checkpoint.exists()
    if resumed:
        checkpoint = torch.load(args.checkpoint, weights_only=True)
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        loader.load_state_dict(checkpoint["loader"])  # some numbers; the next batch is there in milliseconds
        losses, digest = checkpoint["losses"], checkpoint["digest"]
        print(f"resumed at step {len(losses)}")
    print(loader)

    waits: list[float] = []
    start = time.perf_counter()
    batches = epochs(loader)
    with loader:
        while len(losses) < args.steps:
            asked = time.perf_counter()
            batch = next(batches)
            waits.append(time.perf_counter() - asked)

            loss = loss_of(model, batch)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]  # torch has no types for it
            optimizer.step()

            losses.append(loss.item())
            digest = add_to_digest(digest, batch)
            step = len(losses)
            if step % 50 == 0:
                print(f"  step {step:4}: loss {losses[-1]:.2f}", flush=True)
            if step == args.kill_at and not resumed:
                print(f"killed at step {step}, with SIGKILL: nothing can be saved now", flush=True)
                os.kill(os.getpid(), signal.SIGKILL)
            if step % args.save_every == 0:
                save(
                    args.checkpoint,
                    {
                        "model": model.state_dict(),
                        "optimizer": optimizer.state_dict(),
                        "loader": loader.state_dict(),  # names the next batch, whatever has been read ahead
                        "losses": losses,
                        "digest": digest,
                    },
                )
    seconds = time.perf_counter() - start

    print("the loss")
    show_losses(losses)
    if waits:
        print(f"{len(waits) * args.batch_size * args.window / seconds:,.0f} tokens/s")
        share = 100 * sum(waits) / seconds
        print(f"waited for data: {1000 * sum(waits) / len(waits):.2f} ms a step, {share:.2f} % of the time")
        print(f"the first batch was there after {1000 * waits[0]:.1f} ms")

    with make_loader(dataset, args) as unbroken:
        expected = ""
        for batch in itertools.islice(epochs(unbroken), args.steps):
            expected = add_to_digest(expected, batch)
    print(f"batches as delivered:       sha256 {digest}")
    print(f"batches of an unbroken run: sha256 {expected}")
    if digest != expected:
        sys.exit("they differ")
    print(f"all {args.steps} batches are the same")


if __name__ == "__main__":
    main()
