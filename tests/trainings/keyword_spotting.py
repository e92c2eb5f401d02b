"""Recognise spoken words: recordings are read from WAV files and turned into spectrograms when they are needed."""

import argparse
import tempfile
import wave
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

RATE = 44100


def record(folder: Path, number: int) -> None:
    rng = np.random.default_rng(0)
    folder.mkdir(parents=True, exist_ok=True)
    for clip in range(number):
        tone = np.sin(np.arange(RATE) * (200 + 40 * (clip % 10)) * 2 * np.pi / RATE) * 8000 + rng.normal(0, 900, RATE)
        with wave.open(str(folder / f"{clip:04d}.wav"), "wb") as file:
            file.setnchannels(1)
            file.setsampwidth(2)
            file.setframerate(RATE)
            file.writeframes(tone.astype(np.int16).tobytes())


class Words(Dataset):
    def __init__(self, folder: Path) -> None:
        self.paths = sorted(folder.glob("*.wav"))
        self.window = torch.hann_window(1024)

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        with wave.open(str(self.paths[index])) as file:
            samples = np.frombuffer(file.readframes(file.getnframes()), np.int16).astype(np.float32)
        at_16k = np.interp(np.arange(16000) * RATE / 16000, np.arange(len(samples)), samples)
        spectrum = torch.stft(torch.from_numpy(at_16k).float(), 1024, 128, window=self.window, return_complex=True).abs()
        return spectrum[:80].log1p()[None], int(self.paths[index].stem) % 10


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--workers", type=int, default=0)
    args = parser.parse_args()
    folder = Path(tempfile.gettempdir()) / "keyword_spotting"
    if not (folder / "1279.wav").exists():
        record(folder, 1280)
    loader = DataLoader(Words(folder), 32, shuffle=True, num_workers=args.workers, persistent_workers=args.workers > 0)
    model = nn.Sequential(
        *(nn.Conv2d(1, 16, 5, 2, 2), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.ReLU()),
        *(nn.Conv2d(32, 32, 3, 2, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10)),
    )
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    for epoch in range(args.epochs):
        right = 0
        for spectra, words in loader:
            scores = model(spectra)
            loss = nn.functional.cross_entropy(scores, words)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            right += int((scores.argmax(1) == words).sum())
        print(f"epoch {epoch}: loss {loss.item():.3f}, {right} right", flush=True)


if __name__ == "__main__":
    main()
