"""Classify map tiles that a tile server hands out over HTTP; here the server is a process of this script, as slow as one far away."""

import argparse
import http.server
import multiprocessing
import time
import urllib.request

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

TILES = 3200


class TileServer(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        time.sleep(0.012)
        tile = np.random.default_rng(int(self.path[1:])).integers(0, 256, 3 * 32 * 32, np.uint8).tobytes()
        self.send_response(200)
        self.send_header("Content-Length", str(len(tile)))
        self.end_headers()
        self.wfile.write(tile)

    def log_message(self, *words: object) -> None:
        pass


def serve(port_queue: "multiprocessing.Queue[int]") -> None:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), TileServer)
    port_queue.put(server.server_address[1])
    server.serve_forever()


class Tiles(Dataset):
    def __init__(self, port: int) -> None:
        self.address = f"http://127.0.0.1:{port}"

    def __len__(self) -> int:
        return TILES

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        with urllib.request.urlopen(f"{self.address}/{index}") as answer:
            tile = np.frombuffer(answer.read(), np.uint8).reshape(3, 32, 32)
        return torch.from_numpy(tile.astype(np.float32) / 255), index % 6


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()
    ports: multiprocessing.Queue[int] = multiprocessing.Queue()
    server = multiprocessing.Process(target=serve, args=(ports,), daemon=True)
    server.start()
    loader = DataLoader(Tiles(ports.get()), 32, shuffle=True, num_workers=args.workers, persistent_workers=args.workers > 0)
    model = nn.Sequential(nn.Conv2d(3, 24, 5, 2), nn.ReLU(), nn.Conv2d(24, 48, 5, 2), nn.ReLU(), nn.Flatten(), nn.Linear(48 * 25, 6))
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    for epoch in range(args.epochs):
        for tiles, kinds in loader:
            loss = nn.functional.cross_entropy(model(tiles), kinds)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}: loss {loss.item():.3f}", flush=True)
    server.terminate()


if __name__ == "__main__":
    main()
