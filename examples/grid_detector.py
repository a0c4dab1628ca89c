"""A small detector of torchvision's convention: surefit train --data DATA --model MODULE:make.

Each cell of a grid has the scores of the classes (0 is the background) of the object whose centre
is in it, and its box.
"""

import torch
from torch import nn
from torch.nn import functional as F

STRIDE = 8
LEAST_SCORE = 0.05


class GridDetector(nn.Module):
    def __init__(self, num_classes: int) -> None:
        super().__init__()
        layers, size = [], 3
        for width in (16, 32, 32):
            layers += [nn.Conv2d(size, width, 3, 2, 1), nn.ReLU()]
            size = width
        self.body = nn.Sequential(*layers, nn.Conv2d(size, 32, 3, 1, 1), nn.ReLU())
        self.classes, self.boxes = nn.Conv2d(32, num_classes, 1), nn.Conv2d(32, 4, 1)

    def forward(self, images, targets=None):
        features = self.body(torch.stack(images))  # (B, 32, H / 8, W / 8)
        scores, boxes = self.classes(features), self.boxes(features).movedim(1, -1)
        if self.training:
            return self.losses(scores, boxes, targets)
        chances = scores.softmax(1).movedim(1, -1)
        return [self.objects(*each) for each in zip(chances, boxes, strict=True)]

    def losses(self, scores, boxes, targets):
        wanted = torch.zeros(boxes.shape[:-1], dtype=torch.long, device=boxes.device)
        apart = boxes.sum() * 0
        for row, target in enumerate(targets):
            for box, label in zip(target["boxes"], target["labels"], strict=True):
                centre, size = (box[:2] + box[2:]) / 2 / STRIDE, (box[2:] - box[:2]) / STRIDE
                x, y = centre.long().tolist()
                wanted[row, y, x] = label
                made = torch.cat([centre - centre.floor(), size.log()])
                apart = apart + F.smooth_l1_loss(boxes[row, y, x], made, reduction="sum")
        by_cell = F.cross_entropy(scores, wanted, reduction="sum")
        return {"loss_classes": by_cell / len(targets), "loss_boxes": apart / len(targets)}

    def objects(self, chances, boxes):
        best = chances[..., 1:].max(-1)
        y, x = (best.values > LEAST_SCORE).nonzero(as_tuple=True)
        cells = torch.stack([x, y], 1)
        centre, half = (boxes[y, x, :2] + cells) * STRIDE, boxes[y, x, 2:].exp() * STRIDE / 2
        corners = torch.cat([centre - half, centre + half], 1)
        return {"boxes": corners, "labels": best.indices[y, x] + 1, "scores": best.values[y, x]}


def make(num_classes):
    torch.manual_seed(0)
    return GridDetector(num_classes)
