"""Make a profile of any torch model by running it once: modules as they ran, gradients as they came.

Works on the meta device too, where BERT-large costs seconds and no memory. FLOPs are counted as in the profiles of the
data-parallel baselines brief: 2 a multiply-add, 8 an output element of a normalisation, 0 for a look-up; attention's
QK^T and PV are modules.

Shapes: B batch, C channels, H heads, Q and K query and key positions, D head size.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from orch.models.profile import Module, Profile, Tensor

NORM_FLOPS_PER_ELEMENT = 8.0
SCORES, VALUES = "scores", "values"
_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_PRODUCTS = (torch.matmul, torch.bmm, torch.Tensor.matmul, torch.Tensor.bmm, torch.Tensor.__matmul__)


def trace(
    model: nn.Module, step: Callable[[nn.Module], torch.Tensor], *, batch: int, name: str, source: str
) -> Profile:
    """Return the profile of `model` seen in one forward and backward pass.

    `step(model)` returns the loss of one batch of `batch` samples; it may use any device, the model's. Gradients are
    left cleared. A parameter that gets no gradient is in the profile's `never_ready`.
    """
    recorder = _Recorder(model, batch)
    ready: list[str] = []
    hooks = recorder.hook()
    for tensor_name, parameter in model.named_parameters():
        if parameter.requires_grad:
            hook = parameter.register_post_accumulate_grad_hook(_noting(ready, tensor_name))  # type: ignore[no-untyped-call]
            hooks.append(hook)
    try:
        with _AttentionProducts(recorder):
            loss = step(model)
        loss.backward()  # type: ignore[no-untyped-call]
    finally:
        for hook in hooks:
            hook.remove()
        model.zero_grad(set_to_none=True)
    tensors = recorder.tensors()
    modules = tuple(recorder.modules[module] for module in recorder.modules)
    return Profile(name, modules, tensors, tuple(ready), source)


def _noting(ready: list[str], name: str) -> Callable[[torch.Tensor], None]:
    def note(_: torch.Tensor) -> None:
        ready.append(name)

    return note


class _Recorder:
    """Hears every module's forward pass: which leaf ran when, how often, and what it made."""

    def __init__(self, model: nn.Module, batch: int) -> None:
        self.model = model
        self.batch = batch
        self.modules: dict[str, Module] = {}
        self.running: list[str] = []

    def hook(self) -> list[Any]:
        """Attach to every module of the model; returns the handles."""
        handles: list[Any] = []
        for name, module in self.model.named_modules():
            handles.append(module.register_forward_pre_hook(self._enter(name)))
            handles.append(module.register_forward_hook(self._leave(name)))
        return handles

    def _enter(self, name: str) -> Callable[..., None]:
        def enter(module: nn.Module, *_: Any) -> None:
            self.running.append(name)
            if next(module.parameters(recurse=False), None) is not None and not _is_unit(module):
                # It may use its parameters itself (a class token, torch's own attention): it runs about here.
                self.modules.setdefault(name, Module(name, 0.0, 0.0, calls=0))

        return enter

    def _leave(self, name: str) -> Callable[..., None]:
        def leave(module: nn.Module, inputs: Any, output: Any) -> None:
            self.running.pop()
            if _is_unit(module):
                elements = output.numel() / self.batch
                self.add(name, _flops(module, elements), elements)

        return leave

    def add(self, name: str, flops: float, elements: float) -> None:
        """Count one call of a module; `flops` and `elements` are those of one sample."""
        seen = self.modules.get(name, Module(name, 0.0, 0.0, calls=0))
        self.modules[name] = Module(name, seen.flops + flops, seen.activation_elements + elements, calls=seen.calls + 1)

    def add_product(self, kind: str, flops: float, elements: float) -> None:
        """Count a matrix product that belongs to no leaf: attention inside the module that is running."""
        owner = self.running[-1] if self.running else ""
        self.add(f"{owner}#{kind}" if owner else f"#{kind}", flops / self.batch, elements / self.batch)

    def expects(self) -> str:
        """Return which product of attention comes next in the running module: QK^T first, then PV."""
        scores = self.modules.get(f"{self.running[-1] if self.running else ''}#{SCORES}")
        values = self.modules.get(f"{self.running[-1] if self.running else ''}#{VALUES}")
        return SCORES if scores is None or (values is not None and values.calls == scores.calls) else VALUES

    def tensors(self) -> tuple[Tensor, ...]:
        """Return the parameters in registration order, each with the leaves that use it in the order they ran."""
        place = {name: index for index, (name, module) in enumerate(self.modules.items()) if module.calls}
        users: dict[int, list[str]] = {}
        for name, module in self.model.named_modules(remove_duplicate=False):
            for parameter in module.parameters(recurse=False):
                if name in place:
                    users.setdefault(id(parameter), []).append(name)
        found = []
        for name, parameter in self.model.named_parameters():
            owners = sorted(set(users.get(id(parameter), [])), key=place.__getitem__)
            if not owners:
                owners = [self._nearest(name)]
            found.append(Tensor(name, tuple(parameter.shape), tuple(owners)))
        used = {module for tensor in found for module in tensor.modules}
        self.modules = {name: module for name, module in self.modules.items() if module.calls or name in used}
        return tuple(found)

    def _nearest(self, tensor: str) -> str:
        """Return the module that a tensor of no leaf counts for: the closest one around it that ran, or the whole model."""
        owner = tensor
        while owner:
            owner = owner.rpartition(".")[0]
            if owner in self.modules:
                return owner
        self.modules.setdefault("model", Module("model", 0.0, 0.0))
        return "model"


class _AttentionProducts(TorchFunctionMode):
    """Sees the matrix products that no leaf module makes."""

    def __init__(self, recorder: _Recorder) -> None:
        super().__init__()
        self.recorder = recorder

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is nn.functional.scaled_dot_product_attention:
            query, key, value = args[:3]
            scores = query.numel() * key.shape[-2]  # B*H*Q*D * K
            self.recorder.add_product(SCORES, 2.0 * scores, 0.0)  # never stored by a fused kernel
            self.recorder.add_product(
                VALUES,
                2.0 * scores / query.shape[-1] * value.shape[-1],
                scores / query.shape[-1] / key.shape[-2] * value.shape[-1],
            )
            with torch._C.DisableTorchFunction():
                return func(*args, **(kwargs or {}))
        if func is nn.functional.multi_head_attention_forward:
            self._add_attention(*args[:3], **(kwargs or {}))
            with torch._C.DisableTorchFunction():
                return func(*args, **(kwargs or {}))
        result = func(*args, **(kwargs or {}))
        if func in _PRODUCTS and not self._in_leaf():
            self.recorder.add_product(self.recorder.expects(), 2.0 * result.numel() * args[0].shape[-1], result.numel())
        return result

    def _add_attention(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, **_: Any) -> None:
        """Count torch's own attention, which multiplies by its parameters without entering a module; [Q, B, E]."""
        K, E, batch = key.shape[0], query.shape[-1], self.recorder.batch
        read = 2 * query.numel() + key.numel() + value.numel()  # projected: the three inputs, and what they give
        self.recorder.add(self.recorder.running[-1], 2.0 * E * read / batch, read / batch)
        self.recorder.add_product(SCORES, 2.0 * query.numel() * K, 0.0)
        self.recorder.add_product(VALUES, 2.0 * query.numel() * K, query.numel())

    def _in_leaf(self) -> bool:
        running = self.recorder.running
        return bool(running) and _is_unit(self.recorder.model.get_submodule(running[-1]))


def _is_unit(module: nn.Module) -> bool:
    """Whether a module runs as one: it has parameters of its own and none of its children has any."""
    own = next(module.parameters(recurse=False), None)
    return own is not None and all(next(child.parameters(), None) is None for child in module.children())


def _flops(module: nn.Module, elements: float) -> float:
    """Return the forward FLOPs of one sample, from the output elements of that sample."""
    weight = getattr(module, "weight", None)
    if isinstance(module, (nn.Embedding, nn.EmbeddingBag)) or weight is None:
        return 0.0
    if isinstance(module, _CONVOLUTIONS):
        return 2.0 * elements * float(weight[0].numel())  # C_in/groups * kernel
    if weight.dim() == 2:
        # nn.Linear keeps [out, in], transformers' Conv1D [in, out]; either way a product costs numel per output row.
        out = weight.shape[0] if isinstance(module, nn.Linear) else weight.shape[1]
        return 2.0 * elements * float(weight.numel() // out)
    return NORM_FLOPS_PER_ELEMENT * elements
