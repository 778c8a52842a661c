"""Copies of experts: what they compute is what the experts would, and their gradients come back to where these live."""

import pytest
import torch

from orch.models.zoo.mixture import FeedForward, GatedFeedForward
from orch.plan import ReturnGradients, Rows, ShareExpert
from orch.runtime.shadows import Shadows


def shared(kind: type[ShareExpert], expert: int, root: int, numel: int) -> ShareExpert:
    return kind(Rows.buffer_of("x", numel, "fp32"), "m", "share", expert=expert, root=root)


@pytest.mark.parametrize("kind", [FeedForward, GatedFeedForward])
def test_copies_are_the_experts(kind) -> None:
    torch.manual_seed(0)
    whole = kind(4, 6, 12)
    owner, other = kind(2, 6, 12), kind(2, 6, 12)  # of two ranks, experts 0 and 1, 2 and 3
    with torch.no_grad():
        for held, first in ((owner, 0), (other, 2)):
            for mine, all_of in zip(held.parameters(), whole.parameters(), strict=True):
                mine.copy_(all_of[first : first + 2])
    numel = sum(parameter[0].numel() for parameter in whole.parameters())
    ranks = [Shadows([3, 1], owner, 0), Shadows([3, 1], other, 2)]
    for expert, root in ((3, 1), (1, 0)):
        parcels = [one.parcel(shared(ShareExpert, expert, root, numel), place) for place, one in enumerate(ranks)]
        assert {(parcel.root, parcel.adds, parcel.sent.numel()) for parcel in parcels} == {(root, False, numel)}
        parcels[1 - root].sent.copy_(parcels[root].sent)  # a broadcast
    rows, gradient = torch.randn(7, 6), torch.randn(7, 6)
    with torch.no_grad():
        wanted, saved = whole.run(rows, [0, 3, 0, 4])
        of_rows, found = whole.backward_rows(gradient, saved, [0, 3, 0, 4])
        swapped = torch.tensor([3, 4, 5, 6, 0, 1, 2])
        outputs = [one.run(rows[swapped], [4, 3]) for one in ranks]
        back = [one.backward(gradient[swapped]) for one in ranks]
    for one, two in zip(outputs, back, strict=True):
        torch.testing.assert_close(one, wanted[swapped])
        torch.testing.assert_close(two, of_rows[swapped])
    for held in (owner, other):
        for parameter in held.parameters():
            parameter.grad = torch.zeros_like(parameter)
    for expert, root in ((3, 1), (1, 0)):
        parcels = [one.parcel(shared(ReturnGradients, expert, root, numel), place) for place, one in enumerate(ranks)]
        assert {(parcel.root, parcel.adds) for parcel in parcels} == {(root, True)}
        parcels[root].sent.add_(parcels[1 - root].sent)  # a reduction
    for one in ranks:
        one.add(2)
    # Both ranks had the same rows, so that the mean of their gradients is either's.
    for held, first in ((owner, 0), (other, 2)):
        for name, parameter in held.named_parameters():
            expected = torch.zeros_like(parameter)
            expected[1] = found[name][first + 1]
            torch.testing.assert_close(parameter.grad, expected)
