"""torch without privacy, and Opacus: gradients of rows ("hooks") or ghost clipping."""

import warnings

import problems
import torch
from torch import nn

asked = problems.arguments()
torch.set_num_threads(2)
warnings.simplefilter("ignore")
if asked.problem.startswith("logistic"):
    x, y = map(torch.from_numpy, problems.logistic(asked.problem))
    batch, model, loss = problems.batch_of(asked.problem), nn.Linear(x.shape[1], 1), nn.BCEWithLogitsLoss()
    y = y[:, None]
else:
    x, y = map(torch.from_numpy, problems.images())
    y, batch, loss = y.long(), 256, nn.CrossEntropyLoss()
    if asked.problem.startswith("cnn"):
        x = x.reshape(-1, 1, 28, 28)
        model = nn.Sequential(
            nn.Conv2d(1, 16, 8, 2, padding=3), nn.ReLU(), nn.MaxPool2d(2, 1), nn.Conv2d(16, 32, 4, 2), nn.ReLU(),
            nn.MaxPool2d(2, 1), nn.Flatten(), nn.Linear(512, 32), nn.ReLU(), nn.Linear(32, 10),
        )  # fmt: skip
    else:
        width = problems.width_of(asked.problem)
        model = nn.Sequential(nn.Linear(784, width), nn.ReLU(), nn.Linear(width, 10))
optim = torch.optim.SGD(model.parameters(), lr=1e-3)


def batches(steps):
    """Uniform indices; for Opacus those of Poisson sampling."""
    for _ in range(steps):
        if batch == len(x):
            yield x, y
        elif asked.method.startswith("Opacus"):
            index = (torch.rand(len(x)) < batch / len(x)).nonzero().reshape(-1)
            yield x[index], y[index]
        else:
            index = torch.randint(0, len(x), (batch,))
            yield x[index], y[index]


def prepare():
    if not asked.method.startswith("Opacus"):
        return model, optim, loss
    from opacus import PrivacyEngine

    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=batch)
    ghost = {"grad_sample_mode": "ghost", "criterion": loss} if asked.method == "Opacus ghost" else {}
    private = PrivacyEngine().make_private(
        module=model, optimizer=optim, data_loader=loader, noise_multiplier=1.0, max_grad_norm=1.0,
        poisson_sampling=False, **ghost,
    )  # fmt: skip
    own_model, own_optim, *rest = private
    return own_model, own_optim, (rest[0] if ghost else loss)


def run(state, steps):
    model, optim, loss = state
    for rows, labels in batches(steps):
        optim.zero_grad()
        loss(model(rows), labels).backward()
        optim.step()


problems.measured(prepare, run, asked.steps)
