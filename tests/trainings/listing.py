"""Trainings with a known limit, on which no rule of ddpbench was tuned: public repositories, unmodified, and scripts of this folder.

The limit of each was found by hand, without ddpbench, before any diagnosis: ``results/watch/trainings.py`` measures its step as it is,
with each change, and on batches that are repeated from memory. A repository's code is not part of this project: check it out at the
commit, as the folder that ``folder_name`` names.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from ddpbench.record.bottleneck import Bottleneck
from ddpbench.record.root_cause import Cause

FOLDER = Path(__file__).parent

CORES: tuple[Cause, ...] = ("too-few-workers", "too-few-cores", "oversubscribed")
"""Work in a loader that more workers share, until the cores are busy."""

ISSUE = "https://github.com/{}"


@dataclass(frozen=True, kw_only=True)
class Change:
    """A change of a training: other words of its command, or arguments that every DataLoader gets by an edit of one line."""

    title: str
    words: str = ""  # the whole command; "" if it stays
    loader: tuple[str, ...] = ()  # NAME=VALUE, in an edit of the script


@dataclass(frozen=True, kw_only=True)
class Training:
    """A training and its limit: ``kind`` is the verdict that is right, ``causes`` are the root causes that are, empty if it has none.

    ``also`` are verdicts that are right as well, where two limits are inseparable or of nearly equal size. ``words`` are the script and
    its arguments; ``{data}`` in them is the folder of its data.
    """

    name: str
    subjects: tuple[str, ...]
    words: str
    kind: Bottleneck
    causes: tuple[Cause, ...] = ()
    also: tuple[Bottleneck, ...] = ()
    truth: str
    changes: tuple[Change, ...] = ()
    repository: str = ""  # "" if the script is of this folder and trains itself
    is_package: bool = False  # installed from its index; a script of this folder starts its trainer
    version: str = ""  # commit, or version of the package
    report: str = ""  # the public report after which a script of this folder was written
    folder: str = "."  # in the repository, in which the script starts
    prepare: str = "nothing"  # function of data.py
    packages: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    ranks: int = 1  # with torchrun
    after: int = 10  # steps before the timed window
    every: int = 1  # steps of an epoch, or from one evaluation to the next: the window ends at a multiple of it
    until: int | None = None  # step at which it ends, if that may not depend on the time
    has_loader: bool = True  # its batches come from a DataLoader
    endless: bool = False  # it asks one iterator for the batches of all epochs
    outside: str = ""  # what else than steps is in the window

    @property
    def is_public(self) -> bool:
        return bool(self.repository)

    @property
    def right(self) -> str:
        """The right answer in words."""
        named = f"{self.kind}: {' or '.join(self.causes)}" if self.causes else self.kind
        return ", or ".join((named, *self.also))

    @property
    def folder_name(self) -> str:
        return self.repository.rstrip("/").rsplit("/", 1)[-1]


def workers(words: str, *numbers: int, flag: str = "--workers") -> tuple[Change, ...]:
    return tuple(Change(title=f"{flag} {number}", words=f"{words} {flag} {number}") for number in numbers)


def edited(number: int, *others: str) -> Change:
    return Change(title=", ".join((f"num_workers={number}", *others)), loader=(f"num_workers={number}", *others))


NANOGPT = (
    "train.py config/train_shakespeare_char.py --device=cpu --compile=False --eval_iters=20 --log_interval=1 --block_size=64 "
    "--batch_size=12 --n_layer=4 --n_head=4 --n_embd=128 --max_iters=8000 --lr_decay_iters=2000 --dropout=0.0"
)
ROUTES = (
    "run.py --graph_size 20 --baseline exponential --batch_size 64 --epoch_size 3200 --val_size 512 --n_epochs 60 "
    "--no_tensorboard --no_progress_bar --no_cuda"
)
PATCHES = "train.py --train-file {data}/train.h5 --eval-file {data}/eval.h5 --outputs-dir {data}/out"
SUPCON = (
    "main_supcon.py --method SimCLR --dataset path --data_folder {data} --mean (0.5,0.5,0.5) --std (0.25,0.25,0.25) --size 32 "
    "--model resnet18 --batch_size 16 --epochs 40"
)
SFT = (
    "-m trl.scripts.sft --model_name_or_path {data}/model --dataset_name {data}/texts --output_dir {data}/out "
    "--per_device_train_batch_size 8 --max_length 128 --num_train_epochs 20 --report_to none --use_cpu --bf16 False"
)
CLIP = (
    "-m open_clip_train.main --train-data {data}/shard-{0..3}.tar --dataset-type webdataset --train-num-samples 128 --batch-size 4 "
    "--model ViT-S-32-alt --force-image-size 64 --epochs 30 --logs {data}/logs"
)

PUBLIC = (
    Training(
        name="unet",
        subjects=("segmentation", "images"),
        repository="https://github.com/milesial/Pytorch-UNet",
        version="21d7850f2af30a9695bbeea75f3136aa538cfc4a",
        words="train.py --epochs 5 --batch-size 2 --scale 0.2",
        prepare="masks",
        packages=("wandb", "opentelemetry-sdk"),
        environment={"WANDB_MODE": "disabled"},
        after=3,
        every=21,
        outside="an evaluation every 21 steps, with as many new workers as the machine has cores",
        kind="compute-bound",
        truth="The network computes for 93% of the time; the workers, one per core of the machine, are far faster than it.",
        changes=(edited(1),),
    ),
    Training(
        name="nanogpt",
        subjects=("language model", "text", "no DataLoader"),
        repository="https://github.com/karpathy/nanoGPT",
        version="3adf61e154c3fe3fca428ad6bc3818b27a3b8291",
        words=NANOGPT,
        prepare="characters",
        every=250,
        has_loader=False,
        outside="an evaluation of 40 batches every 250 steps",
        kind="compute-bound",
        truth="A batch is a few slices of a memory-mapped array; the model computes all of the time.",
    ),
    Training(
        name="attention_routes",
        subjects=("reinforcement learning", "generated data"),
        repository="https://github.com/wouterkool/attention-learn-to-route",
        version="c9abf41ac2f878a55b20dc7e829bc942bb999631",
        words=ROUTES,
        packages=("tensorboard-logger",),
        environment={"PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION": "python"},
        every=50,
        outside="data are generated before each epoch of 50 steps, and a validation follows it",
        kind="compute-bound",
        truth="Decoding tours step by step is the work; one worker hands out rows of a tensor.",
        changes=(edited(0),),
    ),
    Training(
        name="monai_volumes",
        subjects=("volumes", "segmentation"),
        repository="https://github.com/Project-MONAI/tutorials",
        version="b3c6c998c931d78b61c4d32b37f962a987400f8a",
        folder="3d_segmentation/torch",
        words="unet_training_array.py",
        packages=("monai", "nibabel", "tensorboard"),
        after=5,
        until=10,
        outside="8 workers start in every epoch of 5 steps; not in the window: a validation of 20 volumes after every second epoch",
        kind="compute-bound",
        truth="The 3D network computes for seconds per step; 8 workers that start in every epoch of 5 steps read ahead meanwhile.",
        changes=(edited(2, "persistent_workers=True"),),
    ),
    Training(
        name="dcgan",
        subjects=("GAN", "images"),
        repository="https://github.com/eriklindernoren/PyTorch-GAN",
        version="36d3c77e5ff20ebe0aeefd322326a134a279b93e",
        folder="implementations/dcgan",
        words="dcgan.py --batch_size 64 --n_epochs 3",
        prepare="mnist_two_up",
        kind="compute-bound",
        truth="Generator and discriminator take most of a step; the trainer resizes digits itself, which is a small part of it.",
        changes=(edited(1, "persistent_workers=True"),),
    ),
    Training(
        name="srcnn_hdf5",
        subjects=("super-resolution", "HDF5", "images"),
        repository="https://github.com/yjn870/SRCNN-pytorch",
        version="064dbaac09859f5fa1b35608ab90145e2d60828b",
        words=PATCHES,
        prepare="patches",
        packages=("h5py",),
        every=100,
        outside="8 workers start in every epoch of 100 steps, and an evaluation of 5 images follows it",
        kind="loader-contends-cpu",
        also=("compute-bound",),
        truth="8 workers on two cores start in every epoch and take cores from the network, which computes for 90% of a step; one worker "
        "is fast enough.",
        changes=workers(PATCHES, 1, 0, flag="--num-workers"),
    ),
    Training(
        name="yolo_detection",
        subjects=("detection", "images"),
        repository="https://github.com/ultralytics/ultralytics",
        is_package=True,
        version="8.3.160",
        words="yolo_detection.py {data}",
        prepare="boxes",
        packages=("ultralytics", "ultralytics-thop", "opencv-python-headless", "pandas", "seaborn"),
        environment={"YOLO_CONFIG_DIR": "{data}"},
        after=5,
        until=35,
        endless=True,
        outside="not in the window: a validation of 16 images after every epoch of 40 steps, which takes longer than the epoch",
        kind="compute-bound",
        truth="The detector computes for 88% of a step; on a CPU, ultralytics loads without workers, and computes with as many threads as "
        "the machine has cores, up to 8, whatever it may use.",
    ),
    Training(
        name="trl_sft",
        subjects=("text fine-tuning", "transformers Trainer", "text"),
        repository="https://github.com/huggingface/trl",
        is_package=True,
        version="1.16.0",
        words=SFT,
        prepare="language_model",
        packages=("trl", "transformers", "accelerate", "datasets"),
        environment={"HF_HUB_OFFLINE": "1"},
        kind="compute-bound",
        truth="Texts are tokenised before the training; the model computes nearly all of the time.",
        changes=(Change(title="--dataloader_num_workers 1", words=f"{SFT} --dataloader_num_workers 1"),),
    ),
    Training(
        name="lightning_autoencoder",
        subjects=("Lightning", "images"),
        repository="https://github.com/Lightning-AI/pytorch-lightning",
        version="7f0c3436cd3f6ad3753125672024fc415cbcb414",
        folder="examples/pytorch/basics",
        words="autoencoder.py --trainer.max_epochs=10 --trainer.enable_progress_bar=false",
        prepare="mnist_datasets",
        packages=("lightning", "jsonargparse", "docstring-parser", "typeshed-client"),
        kind="data-bound",
        causes=("too-few-workers", "handoff"),
        truth="The trainer converts 32 digits per step itself, which takes more than half as long as the tiny network and Lightning.",
        changes=(edited(1, "persistent_workers=True"), edited(2, "persistent_workers=True")),
    ),
    Training(
        name="supcontrast",
        subjects=("self-supervision", "images"),
        repository="https://github.com/HobbitLong/SupContrast",
        version="66a8fe53880d6a1084b2e4e0db0a019024d6d41a",
        words=f"{SUPCON} --num_workers 16",
        prepare="image_classes",
        packages=("tensorboard-logger",),
        environment={"PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION": "python"},
        after=2,
        every=15,
        outside="16 workers start in every epoch of 15 steps",
        kind="loader-contends-cpu",
        also=("compute-bound",),
        truth="The network computes for 88% of a step; 16 workers on two cores start in every epoch and take cores from it meanwhile. Two "
        "are fast enough.",
        changes=workers(SUPCON, 2, flag="--num_workers"),
    ),
    Training(
        name="pyg_molecules",
        subjects=("graphs",),
        repository="https://github.com/pyg-team/pytorch_geometric",
        version="5c6461b2305ad068a6d61165b3c55852a11aaa41",
        folder="examples",
        words="mutag_gin.py --epochs 300",
        prepare="small_graphs",
        packages=("torch-geometric",),
        every=22,
        outside="after every epoch of 22 steps, an evaluation on the training loader and one on the test loader",
        kind="data-bound",
        causes=("too-few-workers", "collate"),
        truth="The trainer collates 128 graphs per step itself, which takes about as long as the small network; so does the evaluation.",
        changes=(edited(1, "persistent_workers=True"), edited(2, "persistent_workers=True")),
    ),
    Training(
        name="open_clip_webdataset",
        subjects=("streaming", "images", "text"),
        repository="https://github.com/mlfoundations/open_clip",
        version="89fb801f1e6087880e951fc8354b8a2077b79c6d",
        folder="src",
        words=f"{CLIP} --workers 1",
        prepare="captioned_shards",
        packages=("webdataset==0.2.86", "braceexpand", "ftfy", "timm"),
        after=2,
        every=32,
        outside="the start of an epoch every 32 steps: its worker fills a shuffle buffer",
        kind="compute-bound",
        truth="Two transformers compute most of a step; one worker decodes faster than that.",
        changes=workers(CLIP, 2),
    ),
    Training(
        name="tabnet_income",
        subjects=("tabular data",),
        repository="https://github.com/dreamquark-ai/tabnet",
        is_package=True,
        version="4.1.0",
        words="tabnet_income.py",
        packages=("pytorch-tabnet", "scikit-learn", "pandas"),
        every=39,
        kind="compute-bound",
        truth="TabNet's many small layers take 87% of a step; rows of an array are fetched one by one in the rest, and a worker does not "
        "make that faster.",
        changes=workers("tabnet_income.py", 1),
    ),
    Training(
        name="store_forecast",
        subjects=("time series", "Lightning", "tabular data"),
        repository="https://github.com/sktime/pytorch-forecasting",
        is_package=True,
        version="1.8.0",
        words="store_forecast.py",
        packages=("pytorch-forecasting", "lightning", "pandas", "scikit-learn"),
        every=169,
        kind="data-bound",
        causes=("too-few-workers", "collate"),
        truth="The trainer builds 64 samples per step from the table itself.",
        changes=workers("store_forecast.py", 1, 2),
    ),
    Training(
        name="makemore_names",
        subjects=("language model", "text"),
        repository="https://github.com/karpathy/makemore",
        version="988aa59e4d8fefa526d06f3b453ad116258398d4",
        words="makemore.py",
        every=500,
        endless=True,
        outside="an evaluation every 500 steps",
        kind="compute-bound",
        truth="The transformer computes nearly all of the time; 4 workers are far faster than it.",
        changes=workers("makemore.py", 1, flag="--num-workers"),
    ),
)

OWN = (
    Training(
        name="keyword_spotting",
        subjects=("audio",),
        report=ISSUE.format("Rudrabha/Wav2Lip/issues/447"),
        words="keyword_spotting.py",
        every=40,
        kind="data-bound",
        causes=("too-few-workers", "decode", "augment"),
        truth="The trainer reads, resamples and transforms the recordings itself.",
        changes=workers("keyword_spotting.py", 1, 2),
    ),
    Training(
        name="remote_tiles",
        subjects=("images", "network storage"),
        report=ISSUE.format("pytorch/pytorch/pull/158218"),
        words="remote_tiles.py",
        kind="data-bound",
        causes=("too-few-workers", "storage"),
        truth="Each of two workers waits 12 ms for every tile; more workers wait for more tiles at a time.",
        changes=workers("remote_tiles.py", 8, 16),
    ),
    Training(
        name="house_prices",
        subjects=("tabular data", "pandas"),
        report="https://yuzhu.run/deep-learning-bottleneck",
        words="house_prices.py",
        every=157,
        kind="data-bound",
        causes=("too-few-workers", "handoff", "decode"),
        truth="Rows of a DataFrame are fetched one by one by the trainer; two workers do it in three quarters of the time, tensors end it.",
        changes=(*workers("house_prices.py", 2), Change(title="--tensors", words="house_prices.py --tensors")),
    ),
    Training(
        name="length_buckets",
        subjects=("text", "sampler"),
        report=ISSUE.format("SeanNaren/deepspeech.pytorch/issues/143"),
        words="length_buckets.py",
        kind="data-bound",
        causes=("handoff",),
        truth="The batch sampler, which runs in the trainer, sorts all remaining reviews for every batch; no worker can do that.",
        changes=(
            *workers("length_buckets.py", 4),
            Change(title="--sort-once", words="length_buckets.py --sort-once"),
        ),
    ),
    Training(
        name="many_workers",
        subjects=("images", "regression"),
        report=ISSUE.format("liebharc/homr/pull/128"),
        words="many_workers.py",
        every=100,
        outside="24 workers start in every epoch of 100 steps",
        kind="loader-contends-cpu",
        causes=("oversubscribed",),
        also=("data-bound", "epoch-start-bound"),
        truth="24 workers on two cores prepare their first batches all at once, which the trainer waits for in every epoch, and take cores "
        "from it afterwards.",
        changes=workers("many_workers.py", 1, 2),
    ),
    Training(
        name="spawned_epochs",
        subjects=("images", "short epochs"),
        report=ISSUE.format("Lightning-AI/pytorch-lightning/issues/18862"),
        words="spawned_epochs.py",
        every=20,
        outside="two workers are spawned in every epoch of 20 steps",
        kind="epoch-start-bound",
        also=("data-bound",),
        truth="Each epoch of 20 short steps waits for two workers that start a new interpreter and import torch.",
        changes=(
            Change(title="--persistent", words="spawned_epochs.py --persistent"),
            Change(title="--workers 0", words="spawned_epochs.py --workers 0"),
        ),
    ),
    Training(
        name="frequent_validation",
        subjects=("time series", "evaluation"),
        report=ISSUE.format("Lightning-AI/pytorch-lightning/issues/434"),
        words="frequent_validation.py",
        every=40,
        outside="a validation of 40 batches every 40 steps, with 6 new workers",
        kind="compute-bound",
        truth="Training steps compute; validation, with 6 workers that start each time, takes about a quarter of the time.",
        changes=(
            Change(title="--validation-workers 0", words="frequent_validation.py --validation-workers 0"),
            Change(title="--every 400", words="frequent_validation.py --every 400"),
        ),
    ),
    Training(
        name="uneven_documents",
        subjects=("text", "two ranks"),
        report=ISSUE.format("boathit/t2vec/issues/16"),
        words="uneven_documents.py",
        ranks=2,
        until=330,
        kind="straggler",
        truth="Rank 1 has the long documents and computes longer in every step; rank 0 waits for it.",
        changes=(Change(title="--alike", words="uneven_documents.py --alike"),),
    ),
    Training(
        name="wide_recommender",
        subjects=("recommender", "two ranks"),
        report=ISSUE.format("pytorch/pytorch/issues/87497"),
        words="wide_recommender.py",
        ranks=2,
        until=210,
        kind="sync-bound",
        truth="Each step all-reduces the dense gradients of two large tables, of which a batch touches few rows. One rank alone needs 25 "
        "ms where each of two needs 44 (a busy machine of two cores).",
        changes=(Change(title="--sparse", words="wide_recommender.py --sparse"),),
    ),
    Training(
        name="tagged_sentences",
        subjects=("text", "collate"),
        report=ISSUE.format("huggingface/transformers/issues/14428"),
        words="tagged_sentences.py",
        every=150,
        kind="data-bound",
        causes=("too-few-workers", "collate"),
        truth="The trainer spells and pads every word in Python lists itself, in the collate function.",
        changes=workers("tagged_sentences.py", 1, 2),
    ),
    Training(
        name="json_lines",
        subjects=("streaming", "text", "language model"),
        report=ISSUE.format("huggingface/datasets/issues/5984"),
        words="json_lines.py",
        kind="data-bound",
        causes=("too-few-workers", "decode", "augment"),
        truth="The trainer decompresses, parses and tokenises the stream itself; a worker does that beside the training.",
        changes=workers("json_lines.py", 1, 2),
    ),
    Training(
        name="video_clips",
        subjects=("video",),
        report=ISSUE.format("facebookresearch/pytorchvideo/issues/45"),
        words="video_clips.py",
        kind="data-bound",
        causes=("too-few-workers", "decode"),
        truth="One worker decodes and resizes 32 frames per step, while the small network waits; a second core is idle.",
        changes=workers("video_clips.py", 2, 4),
    ),
    Training(
        name="strong_augmentation",
        subjects=("images", "augmentation"),
        report=ISSUE.format("runa91/barc_release/issues/9"),
        words="strong_augmentation.py",
        kind="data-bound",
        causes=("too-few-cores", "augment", "decode"),
        truth="Distortions take 55 times as long as the network and keep both cores busy: four workers gain 16%, which is the core time "
        "that two leave idle; only more cores or cheaper distortions help.",
        changes=(*workers("strong_augmentation.py", 4), Change(title="--cheap", words="strong_augmentation.py --cheap")),
    ),
)

TRAININGS = (*PUBLIC, *OWN)
