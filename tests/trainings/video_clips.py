"""Recognise actions in short videos: a clip decodes some frames of a film, which is stored as JPEG frames in one file."""

import argparse
import io
import random
import struct
import tempfile
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset


def film(path: Path, seed: int) -> None:
    rng = np.random.default_rng(seed)
    scene = np.kron(rng.integers(0, 256, (15, 20, 3), np.uint8), np.ones((16, 16, 1), np.uint8))
    frames = []
    for shift in range(24):
        frame = io.BytesIO()
        Image.fromarray(np.roll(scene, 4 * shift, 1)).save(frame, "JPEG", quality=90)
        frames.append(frame.getvalue())
    path.write_bytes(b"".join(struct.pack("<I", len(frame)) + frame for frame in frames))


class Clips(Dataset):
    def __init__(self, folder: Path, frames: int) -> None:
        self.paths, self.frames = sorted(folder.glob("*.film")), frames

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        content, position, encoded = self.paths[index].read_bytes(), 0, []
        while position < len(content):
            size = struct.unpack_from("<I", content, position)[0]
            encoded.append(content[position + 4 : position + 4 + size])
            position += 4 + size
        first = random.randrange(len(encoded) - self.frames)
        clip = [np.asarray(Image.open(io.BytesIO(frame)).resize((40, 40))) for frame in encoded[first : first + self.frames]]
        return torch.from_numpy(np.stack(clip)).permute(3, 0, 1, 2).float() / 255, index % 4


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--workers", type=int, default=1)
    args = parser.parse_args()
    folder = Path(tempfile.gettempdir()) / "video_clips"
    folder.mkdir(exist_ok=True)
    for number in range(160):
        if not (path := folder / f"{number:03d}.film").exists():
            film(path, number)
    loader = DataLoader(Clips(folder, 8), 4, shuffle=True, num_workers=args.workers, persistent_workers=args.workers > 0)
    model = nn.Sequential(nn.Conv3d(3, 8, 3, 2, 1), nn.ReLU(), nn.Conv3d(8, 16, 3, 2, 1), nn.ReLU(), nn.Flatten(), nn.Linear(3200, 4))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for epoch in range(args.epochs):
        for clips, actions in loader:
            loss = nn.functional.cross_entropy(model(clips), actions)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}: loss {loss.item():.3f}", flush=True)


if __name__ == "__main__":
    main()
