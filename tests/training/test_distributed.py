from torch import nn

from sightline.training import distributed


def test_large_layers_are_put_together_by_themselves_and_lists_are_not(monkeypatch):
    monkeypatch.setattr(distributed, "UNIT_WEIGHTS", 10)
    small, large = nn.Linear(2, 2), nn.Linear(4, 4)
    blocks = nn.ModuleList([nn.Sequential(nn.Linear(4, 4), nn.ReLU()), nn.Sequential(small, nn.Linear(1, 4)), large])
    model = nn.ModuleDict({"blocks": blocks, "few": nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])})
    assert distributed._units(model) == [blocks[0][0], blocks[1], large]
