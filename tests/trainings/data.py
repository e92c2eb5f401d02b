"""Generated data of the public trainings: each function writes those of one training.

``repository`` is the checked-out repository, in which its script starts, and ``data`` a folder for everything else. All are small.
"""

from __future__ import annotations

import io
import json
import pickle
import random
import tarfile
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw


def _digits(number: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 10, number).astype(np.uint8)
    drawn = []
    for digit in range(10):
        image = Image.new("L", (28, 28))
        ImageDraw.Draw(image).text((8, 4), str(digit), fill=255, font_size=18)
        drawn.append(np.array(image))
    return np.stack(drawn)[labels], labels


def mnist(folder: Path) -> None:
    """The four files that ``torchvision.datasets.MNIST(folder)`` reads, with drawn digits."""
    raw = folder / "MNIST" / "raw"
    raw.mkdir(parents=True, exist_ok=True)
    for split, number in (("train", 60_000), ("t10k", 10_000)):
        names = f"{split}-images-idx3-ubyte", f"{split}-labels-idx1-ubyte"
        images, labels = _digits(number, len(split))
        (raw / names[0]).write_bytes(np.array([2051, number, 28, 28], ">i4").tobytes() + images.tobytes())
        (raw / names[1]).write_bytes(np.array([2049, number], ">i4").tobytes() + labels.tobytes())


def mnist_two_up(repository: Path, data: Path) -> None:
    mnist(repository / "data" / "mnist")


def mnist_datasets(repository: Path, data: Path) -> None:
    """For the example of Lightning, which checks one folder and reads another."""
    mnist(repository / "examples" / "Datasets")
    mnist(repository / "examples" / "pytorch" / "basics" / "data")


def photograph(rng: np.random.Generator, width: int, height: int) -> Image.Image:
    """Large smooth shapes and some noise, so that JPEG files have a usual size."""
    small = Image.fromarray(rng.integers(0, 256, (8, 10, 3), np.uint8)).resize((width, height), Image.Resampling.BICUBIC)
    noisy = np.asarray(small, np.int16) + rng.integers(-12, 13, (height, width, 3))
    return Image.fromarray(noisy.clip(0, 255).astype(np.uint8))


def masks(repository: Path, data: Path) -> None:
    """Photographs of 480 x 320 with a mask each."""
    rng = np.random.default_rng(0)
    for name in ("imgs", "masks"):
        (repository / "data" / name).mkdir(parents=True, exist_ok=True)
    for number in range(240):
        image, mask = photograph(rng, 480, 320), Image.new("L", (480, 320))
        left, top = (int(value) for value in rng.integers(20, 200, 2))
        for canvas, fill in ((image, (200, 40, 40)), (mask, 255)):
            ImageDraw.Draw(canvas).ellipse((left, top, left + 150, top + 90), fill=fill)
        image.save(repository / "data" / "imgs" / f"{number:03d}.jpg", quality=92)
        mask.save(repository / "data" / "masks" / f"{number:03d}.png")


def boxes(repository: Path, data: Path) -> None:
    """A detection set in the format of ultralytics: images, a text file of boxes each, and a YAML file."""
    rng = np.random.default_rng(1)
    for split, number in (("train", 320), ("val", 16)):
        for kind in ("images", "labels"):
            (data / kind / split).mkdir(parents=True, exist_ok=True)
        for index in range(number):
            image, lines = photograph(rng, 320, 240), []
            for _ in range(3):
                x, y, width, height = rng.uniform(0.2, 0.7), rng.uniform(0.2, 0.7), rng.uniform(0.1, 0.3), rng.uniform(0.1, 0.3)
                corners = ((x - width / 2) * 320, (y - height / 2) * 240, (x + width / 2) * 320, (y + height / 2) * 240)
                ImageDraw.Draw(image).rectangle(corners, fill=(30, 30, 220))
                lines.append(f"0 {x:.4f} {y:.4f} {width:.4f} {height:.4f}")
            image.save(data / "images" / split / f"{index:04d}.jpg", quality=90)
            (data / "labels" / split / f"{index:04d}.txt").write_text("\n".join(lines) + "\n")
    (data / "boxes.yaml").write_text(f"path: {data}\ntrain: images/train\nval: images/val\nnames:\n  0: box\n")


def image_classes(repository: Path, data: Path) -> None:
    """JPEG files of 400 x 300 in folders of classes."""
    rng = np.random.default_rng(2)
    for number in range(240):
        (folder := data / f"class{number % 4}").mkdir(parents=True, exist_ok=True)
        photograph(rng, 400, 300).save(folder / f"{number:04d}.jpg", quality=92)


def characters(repository: Path, data: Path) -> None:
    """Token files of nanoGPT's character data set."""
    folder = repository / "data" / "shakespeare_char"
    text = verses(40_000)
    letters = sorted(set(text))
    stoi = {letter: number for number, letter in enumerate(letters)}
    ids = np.array([stoi[letter] for letter in text], np.uint16)
    ids[: len(ids) * 9 // 10].tofile(folder / "train.bin")
    ids[len(ids) * 9 // 10 :].tofile(folder / "val.bin")
    (folder / "meta.pkl").write_bytes(pickle.dumps({"vocab_size": len(letters), "itos": dict(enumerate(letters)), "stoi": stoi}))


def verses(words: int, seed: int = 4) -> str:
    rng = random.Random(seed)
    lexicon = ["".join(rng.choices("aeiounrstlmdhpc", k=rng.randint(2, 9))) for _ in range(800)]
    return "".join(f"{rng.choice(lexicon)}{rng.choice('      ,.;') if number % 9 else chr(10)}" for number in range(words))


def patches(repository: Path, data: Path) -> None:
    """HDF5 files of image patches, compressed, as ``prepare.py`` of SRCNN-pytorch names them."""
    import h5py

    rng = np.random.default_rng(5)
    data.mkdir(parents=True, exist_ok=True)
    scene = np.asarray(photograph(rng, 1200, 900).convert("L"), np.float32)
    corners = rng.integers(0, 860, (1600, 2))
    high = np.stack([scene[y : y + 33, x : x + 33] for y, x in corners])
    with h5py.File(data / "train.h5", "w") as file:
        file.create_dataset("lr", data=(high // 8) * 8, compression="gzip", chunks=(64, 33, 33))
        file.create_dataset("hr", data=high, compression="gzip", chunks=(64, 33, 33))
    with h5py.File(data / "eval.h5", "w") as file:
        for name in ("lr", "hr"):
            for index in range(5):
                file.create_dataset(f"{name}/{index}", data=scene[:120, index * 120 : index * 120 + 120])


def small_graphs(repository: Path, data: Path) -> None:
    """The text files of TUDataset's MUTAG, with 3,000 generated molecules."""
    folder = repository / "data" / "TU" / "MUTAG" / "raw"
    folder.mkdir(parents=True, exist_ok=True)
    rng = random.Random(6)
    edges, indicator, nodes, graphs = [], [], [], []
    for graph in range(1, 3001):
        first, size = len(nodes) + 1, rng.randint(12, 26)
        links = [(node, rng.randrange(max(0, node - 4), node)) for node in range(1, size)]
        edges += [f"{first + one}, {first + other}" for pair in links for one, other in (pair, pair[::-1])]
        indicator += [str(graph)] * size
        nodes += [str(rng.randrange(7)) for _ in range(size)]
        graphs.append(rng.choice(("-1", "1")))
    for name, lines in (("A", edges), ("graph_indicator", indicator), ("node_labels", nodes), ("graph_labels", graphs)):
        (folder / f"MUTAG_{name}.txt").write_text("\n".join(lines) + "\n")


def captioned_shards(repository: Path, data: Path) -> None:
    """Tar shards of JPEG files with a caption each."""
    rng = np.random.default_rng(7)
    data.mkdir(parents=True, exist_ok=True)
    captions = verses(6000).split("\n")
    for shard in range(4):
        with tarfile.open(data / f"shard-{shard}.tar", "w") as tar:
            for index in range(64):
                image = io.BytesIO()
                photograph(rng, 640, 480).save(image, "JPEG", quality=92)
                for suffix, content in (("jpg", image.getvalue()), ("txt", captions[shard * 64 + index].encode())):
                    member = tarfile.TarInfo(f"{shard}{index:03d}.{suffix}")
                    member.size = len(content)
                    tar.addfile(member, io.BytesIO(content))


def language_model(repository: Path, data: Path) -> None:
    """A small untrained Llama with a tokenizer, and JSON lines to fine-tune it on."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    texts = [" ".join(verses(90, seed).split()) for seed in range(1200)]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(), decoders.ByteLevel()
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=1000, special_tokens=["<pad>", "<eos>"], show_progress=False))
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>")
    fast.save_pretrained(data / "model")
    sizes = {"hidden_size": 96, "intermediate_size": 192, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4}
    config = LlamaConfig(vocab_size=len(fast), max_position_embeddings=512, pad_token_id=0, eos_token_id=1, bos_token_id=1, **sizes)
    LlamaForCausalLM(config).save_pretrained(data / "model")
    (data / "texts").mkdir(exist_ok=True)
    (data / "texts" / "train.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))


def nothing(repository: Path, data: Path) -> None:
    """The script generates its data, or the repository has them."""
