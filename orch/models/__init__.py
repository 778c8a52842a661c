"""Models as data: what a step computes and which gradients it makes, torch-free; the zoo and the data sets may load
torch.
"""
