"""A network of words that reads them one after another, in two layers."""

import torch

torch.manual_seed(0)
embed = torch.nn.Embedding(100, 16).cuda()
lstm = torch.nn.LSTM(16, 32, 2, batch_first=True, dropout=0.1).cuda()
optimizer = torch.optim.SGD([*embed.parameters(), *lstm.parameters()], lr=0.1)
words = torch.randint(0, 100, (8, 20), device="cuda")
for _ in range(3):
    optimizer.zero_grad()
    result, (hidden, cell) = lstm(embed(words))
    assert result.shape == (8, 20, 32) and hidden.shape == cell.shape == (2, 8, 32)
    result.square().mean().backward()
    optimizer.step()
