"""Whether ``torch.backends.cudnn.benchmark`` makes ResNet-50 faster on this GPU, and whether it does so if it is switched on later.

python results/computing/cudnn_benchmark.py late|fresh first|last amp|fp32

``late`` switches it on after the shapes were seen, ``fresh`` before them; ``first`` and ``last`` are the place of the channels. Prints the
seconds of the first five steps, and steps per second of three windows before the switch and three after it.
"""

import sys
import time
from collections.abc import Callable


def make_step(channels_last: bool, amp: bool) -> Callable[[], None]:
    import torch
    import torchvision

    model = torchvision.models.resnet50().cuda()
    images, labels = torch.randn(128, 3, 224, 224, device="cuda"), torch.randint(0, 1000, (128,), device="cuda")
    if channels_last:
        model = model.to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.float16, enabled=amp):
            loss = torch.nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()

    return step


def seconds(step: Callable[[], None], steps: int) -> float:
    import torch

    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(steps):
        step()
    torch.cuda.synchronize()
    return time.perf_counter() - begin


def main() -> None:
    import torch

    start, channels, precision = sys.argv[1:]
    torch.backends.cudnn.benchmark = start == "fresh"
    step = make_step(channels == "last", precision == "amp")
    first_s = seconds(step, 5)
    before = [round(20 / seconds(step, 20), 3) for _ in range(3)]
    torch.backends.cudnn.benchmark = True
    seconds(step, 5)
    after = [round(20 / seconds(step, 20), 3) for _ in range(3)]
    print(sys.argv[1:], "first", round(first_s, 1), "before", before, "after switching on", after)


if __name__ == "__main__":
    main()
