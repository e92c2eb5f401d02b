"""An image classifier with DistributedDataParallel, as one might have it already, without a word of ddpbench.

It reads JPEG files from class folders under train/, with few workers. From the root of a clone:

    ddpbench make-data imagenet /tmp/imagenet
    torchrun --standalone --nproc_per_node=2 docs/examples/train_images.py /tmp/imagenet --workers 4
"""

import argparse
import os
from pathlib import Path

import torch
from torch import distributed, nn
from torch.utils.data import DataLoader, DistributedSampler
from torchvision import models, transforms
from torchvision.datasets import ImageFolder


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("--model", default="resnet18")
    parser.add_argument("--epochs", type=int, default=90)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--workers", type=int, default=4)
    args = parser.parse_args()

    on_gpu = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpu else torch.device("cpu")
    distributed.init_process_group("nccl" if on_gpu else "gloo")
    if on_gpu:
        torch.cuda.set_device(device)
    augment = transforms.Compose(
        [
            transforms.RandomResizedCrop(args.image_size),
            transforms.RandomHorizontalFlip(),
            transforms.ToTensor(),
            transforms.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
        ]
    )
    images = ImageFolder(args.data / "train", augment)
    sampler = DistributedSampler(images)
    loader = DataLoader(images, args.batch_size, sampler=sampler, num_workers=args.workers, pin_memory=on_gpu, drop_last=True)
    network = models.get_model(args.model, num_classes=len(images.classes)).to(device)
    model = nn.parallel.DistributedDataParallel(network, [device.index] if on_gpu else None)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    scaler = torch.amp.GradScaler(device.type, enabled=on_gpu)

    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for inputs, labels in loader:
            inputs, labels = inputs.to(device, non_blocking=True), labels.to(device, non_blocking=True)
            with torch.autocast(device.type, torch.float16, enabled=on_gpu):
                loss = nn.functional.cross_entropy(model(inputs), labels)
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        if distributed.get_rank() == 0:
            print(f"epoch {epoch}: loss {loss.item():.3f}", flush=True)
            torch.save(network.state_dict(), "model.pt")
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
