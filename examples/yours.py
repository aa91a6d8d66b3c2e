"""Stand-ins for what you provide: a trained network, a loader of its images, and some images to certify.

The snippets of the documentation use the names that are defined here.
"""

import torch
from torch import nn

from heatsmooth.data import load_images

model = nn.Sequential(nn.Conv2d(1, 8, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 13 * 13, 10))
train, test = load_images("fashion-mini", "train"), load_images("fashion-mini", "test")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
for positions in torch.arange(2000).split(50):
    loss = nn.functional.cross_entropy(model(train.images(positions)), train.known_labels()[positions])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
model.eval()

loader = [train.images(positions) for positions in torch.arange(2000).split(100)]
images, labels = test.images(torch.arange(20)), test.known_labels()[:20]
