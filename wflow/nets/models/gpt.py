"""GPT: a causal transformer that predicts the next token of a text.

Radford et al., "Language models are unsupervised multitask learners" (GPT-2, 2019); weights shared
by embedding and output as in Press and Wolf, "Using the output embedding to improve language
models" (2017). In [OTT] (arXiv 2505.13499, Appendix I) the baseline on characters has 6 blocks of
width 384 and 10.65 million parameters, the continuous-time model 5 blocks of width 320 without
layer norms and 6.16 million.
"""

import os
import re
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self, TypeGuard

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from wflow._core.checks import field, number, path_of, shown, switch, whole
from wflow._core.errors import InputError
from wflow._core.files import check_zip, opened
from wflow.nets.blocks import (
    Block,
    Gelu,
    Stack,
    TokenEmbedding,
    check_tokens,
    evaluating,
    layer_norm,
)
from wflow.nets.checks import dense, in_memory, load_tensors, tensor
from wflow.nets.continuous import Output, as_flow
from wflow.nets.pretrained import CONFIG, WEIGHTS, Pretrained, read_config, read_weights
from wflow.nets.registry import register


@register
class GPT(Pretrained):
    """Causal language model: logits of the next token, E norm(X(T)), E the token embedding.

    `embed` makes hidden states (batch, tokens, width) of token ids, `body` moves them, `head`
    reads each of them. The body may be replaced by what keeps their shape.

    Linear maps and embeddings start as normal numbers of standard deviation 0.02, and those that
    add to the hidden states as 0.02 / sqrt(2 depth), so that their sum does not grow with the
    depth (Radford et al., section 2.3).

    Parameters
    ----------
    vocabulary : int
        Number of token ids.
    context : int
        Length of the longest text that it sees.
    width, depth, heads : int
        Width of the hidden states, number of blocks, number of heads. The feed-forward layers are
        four times as wide inside.
    norm : bool, default True
        False leaves all layer norms out, the final one too.
    bias : bool, default False
        Whether linear maps and layer norms have biases, as published GPT-2 networks do.
    skip : bool, default True
        False leaves the skip connection of the feed-forward layers out, for N-ODE blocks.
    gelu : {"none", "tanh"}
        `none`, the function itself; `tanh`, the approximation in published GPT-2 networks.
    dropout : float, default 0.0
        Rate of dropout in embedding, attention and blocks.

    Raises
    ------
    InputError
        For a width that the heads cannot share, and sizes out of range.

    Examples
    --------
    >>> import torch
    >>> from wflow import nets
    >>> net = nets.GPT(vocabulary=11, context=8, width=6, depth=2, heads=2)
    >>> net.body = nets.ContinuousTransformer(net.body, t_final=1.0, steps=10)
    >>> net(torch.tensor([[3, 1, 4]])).output.shape
    torch.Size([1, 3, 11])
    """

    @in_memory
    def __init__(
        self,
        *,
        vocabulary: int,
        context: int,
        width: int,
        depth: int,
        heads: int,
        norm: bool = True,
        bias: bool = False,
        skip: bool = True,
        gelu: Gelu = "none",
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self._special: dict[str, Any] = {}
        self.vocabulary, self.context = whole(vocabulary, "vocabulary"), whole(context, "context")
        self.embed = TokenEmbedding(vocabulary, context, width, dropout=dropout)
        self.body: nn.Module = Stack(
            Block(
                width,
                heads,
                hidden=4 * whole(width, "width"),
                causal=True,
                norm=norm,
                bias=bias,
                skip=skip,
                gelu=gelu,
                dropout=dropout,
            )
            for _ in range(whole(depth, "depth"))
        )
        self.head = TokenHead(width, vocabulary, norm=norm, bias=bias)
        self.head.weight = self.embed.token.weight
        self._begin(0.02, 0.02 / (2 * depth) ** 0.5)

    def forward(self, tokens: Tensor, targets: Tensor | None = None) -> Output:
        """Predict each next token.

        Parameters
        ----------
        tokens : Tensor, shape (batch, tokens)
            Token ids, at most `context` per text.
        targets : Tensor, shape (batch, tokens), optional
            Ids of the next tokens. With them losses are returned in place of logits, and memory
            does not grow with tokens x vocabulary: logits are computed for some tokens at a time,
            and again in the backward pass.

        Returns
        -------
        Output
            Logits (batch, tokens, vocabulary), and the transport cost; the logits at token j are
            those of token j + 1, and depend on tokens up to j only. With targets y the output is
            -log softmax(logits)_y of each token, (batch, tokens).

        Raises
        ------
        InputError
            For ids beyond the vocabulary, texts longer than the context, other shapes or types.
        """
        if targets is not None:
            _check_targets(targets, tokens, self.vocabulary)
        state, cost = as_flow(self.body(self.embed(tokens)))
        if targets is None:
            return Output(self.head(state), cost)
        return Output(_losses(self.head, self.vocabulary, state, targets), cost)

    def count(self, positions: bool = False) -> int:
        """Count the parameters.

        Parameters
        ----------
        positions : bool, default False
            Whether those of the position embedding count.

        Returns
        -------
        int
            Number of parameters.

        Raises
        ------
        InputError
            For `positions` that is no bool.
        """
        positions = switch(positions, "positions")
        total = sum(parameter.numel() for parameter in self.parameters())
        return total if positions else total - self.embed.position.weight.numel()

    @torch.no_grad()
    def generate(
        self,
        tokens: Tensor,
        new: int,
        *,
        temperature: float = 1.0,
        top_k: int | None = None,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Continue a text: draw one token after another from softmax(logits / temperature).

        Dropout is off meanwhile. Of texts longer than the context, the end is seen.

        Parameters
        ----------
        tokens : Tensor, shape (batch, tokens)
            Beginnings, of any length >= 1.
        new : int
            Number of tokens to add.
        temperature : float, default 1.0
            Number >= 0; below 1 likely tokens become likelier, 0 takes the likeliest.
        top_k : int, optional
            Draw from that many of the likeliest tokens; None from all.
        generator : torch.Generator, optional
            Source of the random numbers, on the device of the network.

        Returns
        -------
        Tensor, shape (batch, tokens + new)
            The texts with their continuations, int64.

        Raises
        ------
        InputError
            For ids beyond the vocabulary, or numbers out of range.
        """
        new, temperature = whole(new, "new", 0), number(temperature, "temperature", 0)
        kept = self.vocabulary if top_k is None else min(whole(top_k, "top_k"), self.vocabulary)
        tensor(tokens, "tokens", "whole")
        if generator is not None and not isinstance(generator, torch.Generator):
            kind = type(generator).__name__
            raise InputError(f"generator is {kind}: expected a torch.Generator, or None")
        check_tokens(tokens.cpu(), self.vocabulary)  # once, so the ids of a GPU are read, too
        tokens = tokens.long()
        with evaluating(self):
            for _ in range(new):
                hidden = self.embed(tokens[:, -self.context :])
                state = as_flow(self.body(hidden)).state
                logits = self.head(state[:, -1])  # (batch, vocabulary)
                drawn = _draw(logits, temperature, kept, generator)  # (batch, 1)
                tokens = torch.cat([tokens, drawn], dim=1)
        return tokens

    @classmethod
    def from_pretrained(cls, folder: str | Path, *, dropout: float = 0.0) -> Self:
        """Make a network from a folder of `save_pretrained`, or of a published GPT-2 [1]_.

        A GPT-2 is read in the layout of Hugging Face.

        Parameters
        ----------
        folder : str or Path
            Folder with `config.json` and `model.safetensors`. For a GPT-2 the weights may also be
            in `pytorch_model.bin`, which is read as tensors alone. Nothing in it is executed.
        dropout : float, default 0.0
            Rate of dropout of a GPT-2, for further training.

        Returns
        -------
        GPT
            The network in evaluation mode on the CPU. A GPT-2 has biases and the gelu of its
            configuration, in single precision, or in double where its weights are.

        Raises
        ------
        InputError
            For a folder that is missing, incomplete, damaged or of another model, a GPT-2 with
            settings that `GPT` does not have, or a missing safetensors.

        References
        ----------
        .. [1] Radford, Wu, Child, Luan, Amodei, Sutskever, "Language models are unsupervised
           multitask learners" (2019).

        Examples
        --------
        >>> import tempfile
        >>> from wflow import nets
        >>> net = nets.GPT(vocabulary=11, context=8, width=6, depth=1, heads=2)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     net.save_pretrained(folder)
        ...     nets.GPT.from_pretrained(folder).context
        8
        """
        folder = path_of(folder, "folder")
        config = read_config(folder)
        # transformers keeps our settings, an old digest too, where it saves such a network again.
        ours = (
            str(config.get("format")).startswith("wflow") and "transformers_version" not in config
        )
        if ours or config.get("model_type") != "gpt2":
            net = super().from_pretrained(folder)
            net._special = _special_tokens(config)
            return net
        gelu = _published_gelu(folder / CONFIG, config)
        try:
            net = cls.from_gpt2(
                _published_weights(folder), heads=config["n_head"], gelu=gelu, dropout=dropout
            )
        except InputError as error:
            raise InputError(f"{folder} is no GPT-2 that can be read: {error}") from None
        width, depth = net.embed.token.embedding_dim, len(net.body)  # type: ignore[arg-type]
        found = (net.vocabulary, net.context, width, depth)
        names = ("vocab_size", "n_positions", "n_embd", "n_layer")
        for name, size in zip(names, found, strict=True):
            if config.get(name, size) != size:
                raise InputError(
                    f"{folder} is damaged: {name} is {shown(config[name])} in config.json and "
                    f"{size} by the weights; get the folder again"
                )
        net._special = _special_tokens(config)
        return net.eval()

    @classmethod
    def from_gpt2(
        cls,
        state: Mapping[str, Tensor],
        *,
        heads: int | None = None,
        gelu: Gelu = "tanh",
        dropout: float = 0.0,
    ) -> Self:
        """Make a network of the weights of a published GPT-2.

        Their names are `wte.weight`, `wpe.weight`, `h.0.ln_1.weight`, `h.0.attn.c_attn.weight`,
        ..., `ln_f.bias`, with or without `transformer.` before them. Sizes are read from the
        shapes. Matrices of linear maps stand there as (in, out), the transpose of torch's.

        Parameters
        ----------
        state : mapping
            Names and weights.
        heads : int, optional
            Number of heads, which no weight tells; None is width / 64, that of all published sizes.
        gelu : {"tanh", "none"}
            As for `GPT`; published networks have the approximation.
        dropout : float, default 0.0
            Rate of dropout, for further training.

        Returns
        -------
        GPT
            Network with biases, in single precision, or in double where the weights are.

        Raises
        ------
        InputError
            For a weight that is missing, of another shape, or not of a GPT-2: the message names
            it, the shape found and the shape expected.
        """
        if not isinstance(state, Mapping) or not all(isinstance(name, str) for name in state):
            raise InputError(
                f"state is {type(state).__name__}: expected the weights of a GPT-2 by name"
            )
        state = {name.removeprefix("transformer."): weight for name, weight in state.items()}
        output = state.pop("lm_head.weight", None)
        vocabulary, width = _matrix_shape(state, "wte.weight")
        context, _ = _matrix_shape(state, "wpe.weight")
        depth = _depth_of(state)
        net = cls(
            vocabulary=vocabulary,
            context=context,
            width=width,
            depth=max(1, depth),
            heads=_published_heads(width) if heads is None else heads,
            bias=True,
            gelu=gelu,
            dropout=dropout,
        ).to(torch.promote_types(state["wte.weight"].dtype, torch.float32))
        names = _gpt2_names(max(1, depth))
        for name in state:
            if name not in names and not name.endswith((".attn.bias", ".attn.masked_bias")):
                raise InputError(
                    f"{name} is no weight of a GPT-2 of {depth} blocks: expected wte, wpe, "
                    "ln_f and blocks from h.0 on; take out what belongs to another network"
                )
        with torch.no_grad():
            for name, ours in names.items():
                target = _transposed(name, net.get_parameter(ours))
                target.copy_(_fitting(state, name, tuple(target.shape)))
        wte = state["wte.weight"]
        shared = _is_weight(output, "lm_head.weight", wte.shape) and torch.equal(output, wte)
        if output is not None and not shared:
            raise InputError(
                f"lm_head.weight is {_kind(output)} and differs from wte.weight: expected the same "
                f"matrix {(vocabulary, width)}, for GPT shares it between embedding and output"
            )
        return net

    def _to_transformers(
        self, config: dict[str, Any], state: dict[str, Tensor]
    ) -> tuple[dict[str, Any], dict[str, Tensor]]:
        given = config["arguments"]
        if type(self) is not GPT or "body" in config or not (given["norm"] and given["skip"]):
            return super()._to_transformers(config, state)
        end = 50256 if self.vocabulary == 50257 else None  # <|endoftext|> of published networks
        special = {"bos_token_id": end, "eos_token_id": end} | self._special
        settings = {
            "model_type": "gpt2",
            "architectures": ["GPT2LMHeadModel"],
            "vocab_size": self.vocabulary,
            "n_positions": self.context,
            "n_embd": given["width"],
            "n_layer": given["depth"],
            "n_head": given["heads"],
            "activation_function": "gelu_new" if given["gelu"] == "tanh" else "gelu",
            **dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), given["dropout"]),
            **{name: expected for name, (expected, _) in _SETTINGS.items()},
            **special,
        }
        weights = {}
        for name, ours in _gpt2_names(given["depth"]).items():
            if ours not in state:  # a GPT-2 has biases: zeros are none
                rows = state[ours.removesuffix("bias") + "weight"]
                state[ours] = rows.new_zeros(len(rows))
            weights[f"transformer.{name}"] = _transposed(name, state[ours])
        return settings, weights

    def _from_transformers(self, state: dict[str, Tensor]) -> dict[str, Tensor]:
        if "transformer.wte.weight" not in state:
            return state
        state = {name.removeprefix("transformer."): weight for name, weight in state.items()}
        names, own = _gpt2_names(_depth_of(state)), self.state_dict()
        return {
            names.get(name, name): _transposed(name, weight)
            for name, weight in state.items()
            if names.get(name) in own or not (name in names and name.endswith("bias"))
        }

    def _begin(self, std: float, residual_std: float) -> None:
        """Draw all matrices; set biases to zero. Layer norms begin as they are."""
        for name, parameter in self.named_parameters():
            if name.endswith(("attention.out.weight", "feed_forward.down.weight")):
                nn.init.normal_(parameter, std=residual_std)
            elif parameter.ndim == 2:
                nn.init.normal_(parameter, std=std)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)


def gpt_of(network: Any) -> GPT:
    """Return a GPT-2 of transformers, whatever its head, as a GPT in evaluation mode.

    Raises
    ------
    InputError
        For settings that `GPT` does not have.
    """
    config = network.config.to_dict()
    gelu = _published_gelu("the configuration", config)
    with torch.random.fork_rng([]):  # the weights that are drawn are replaced
        net = GPT.from_gpt2(network.base_model.state_dict(), heads=config["n_head"], gelu=gelu)
    return net.to(network.device).eval()


class TokenHead(nn.Linear):
    """Layer norm and linear map without bias: (..., width) to logits (..., vocabulary).

    Parameters
    ----------
    width, vocabulary, norm : int or bool
        As for `GPT`.
    bias : bool, default False
        Whether the layer norm has a bias.
    """

    def __init__(
        self, width: int, vocabulary: int, *, norm: bool = True, bias: bool = False
    ) -> None:
        super().__init__(width, vocabulary, bias=False)
        self.norm = layer_norm(width, norm, bias)

    def forward(self, hidden: Tensor) -> Tensor:
        """Map hidden states to logits."""
        return super().forward(self.norm(hidden))


_LOGITS = 1 << 24  # that are in memory at a time, where losses are asked for


def _losses(head: nn.Module, vocabulary: int, hidden: Tensor, targets: Tensor) -> Tensor:
    """Return cross-entropies (batch, tokens) of hidden states under the head, part by part."""

    def part(states: Tensor, classes: Tensor) -> Tensor:
        logits = head(states)  # (tokens of the part, vocabulary)
        if logits.dtype in (torch.bfloat16, torch.float16):
            logits = logits.float()  # a sum of many terms needs the digits
        return nn.functional.cross_entropy(logits, classes, reduction="none")

    states, classes = hidden.flatten(0, 1), targets.flatten().long()
    size = max(1, _LOGITS // vocabulary)
    if size >= len(states):
        return part(states, classes).view(targets.shape)
    found = [
        checkpoint(part, *pair, use_reentrant=False, preserve_rng_state=False)
        for pair in zip(states.split(size), classes.split(size), strict=True)
    ]
    return torch.cat(found).view(targets.shape)


def _check_targets(targets: Tensor, tokens: Tensor, vocabulary: int) -> None:
    """Check ids of next tokens, in eager mode; ids themselves on the CPU only."""
    if torch.compiler.is_compiling():
        return
    tensor(targets, "targets", "whole", tensor(tokens, "token ids", "whole", meta=True))
    check_tokens(targets, vocabulary)
    if targets.shape != tokens.shape:
        raise InputError(
            f"targets are of shape {tuple(targets.shape)} and tokens {tuple(tokens.shape)}: "
            "expected the same"
        )


def _draw(
    logits: Tensor, temperature: float, kept: int, generator: torch.Generator | None
) -> Tensor:
    """Draw token ids (batch, 1) from logits (batch, vocabulary), among the `kept` largest."""
    values, ids = logits.float().topk(kept, dim=-1)  # (batch, kept), the largest first, NaN too
    if not values[:, 0].isfinite().all():
        raise InputError(
            "the logits are not finite: expected finite ones; the network has diverged, or its "
            "weights are damaged"
        )
    if temperature == 0:
        return logits.argmax(dim=-1, keepdim=True)
    # Counted from their largest down: then no temperature, however low, makes them overflow. One
    # that is 0 in single precision would divide 0 by 0.
    temperature = max(temperature, torch.finfo(values.dtype).tiny)
    chances = torch.softmax((values - values[:, :1]) / temperature, dim=-1)
    return ids.gather(1, torch.multinomial(chances, 1, generator=generator))


_WHOLE = {"wte": "embed.token", "wpe": "embed.position", "ln_f": "head.norm"}
_PARTS = {  # of a block
    "ln_1": "norm_attention",
    "attn.c_attn": "attention.qkv",
    "attn.c_proj": "attention.out",
    "ln_2": "norm_feed_forward",
    "mlp.c_fc": "feed_forward.up",
    "mlp.c_proj": "feed_forward.down",
}


def _gpt2_names(depth: int) -> dict[str, str]:
    """Map names of the weights in a published GPT-2 to ours."""
    places = dict(_WHOLE)
    for i in range(depth):
        places |= {f"h.{i}.{name}": f"body.blocks.{i}.{ours}" for name, ours in _PARTS.items()}
    return {
        f"{name}.{kind}": f"{ours}.{kind}"
        for name, ours in places.items()
        for kind in ("weight", "bias")
        if kind == "weight" or not ours.startswith("embed")
    }


def _depth_of(state: Mapping[str, Any]) -> int:
    """Count the blocks in the weights of a published GPT-2."""
    return len({found[1] for name in state if (found := re.match(r"h\.(\d+)\.", name))})


def _transposed(name: str, weight: Tensor) -> Tensor:
    """Transpose the matrices of blocks, which a published GPT-2 has as (in, out)."""
    return weight.T if name.startswith("h.") and weight.ndim == 2 else weight


_GELUS: dict[str, Gelu] = {"gelu_new": "tanh", "gelu_pytorch_tanh": "tanh", "gelu": "none"}


# Settings of a GPT-2 that change what it computes, with the only value that GPT has.
def _special_tokens(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tokens that begin and end texts, which only transformers' `generate` asks for."""
    names = ("bos_token_id", "eos_token_id", "pad_token_id")
    return {name: config[name] for name in names if config.get(name) is not None}


_SETTINGS: dict[str, tuple[Any, Any]] = {
    "layer_norm_epsilon": (1e-5, 1e-5),  # expected, and the default where it is missing
    "scale_attn_weights": (True, True),
    "scale_attn_by_inverse_layer_idx": (False, False),
    "add_cross_attention": (False, False),
    "tie_word_embeddings": (True, True),
}
_BIN = "pytorch_model.bin"


def _published_gelu(path: Path | str, config: dict[str, Any]) -> Gelu:
    """Return the gelu of a GPT-2, after a check of all settings that GPT does not have."""
    for name, (expected, default) in _SETTINGS.items():
        if config.get(name, default) != expected:
            raise InputError(
                f"{path} has {name} = {shown(config[name])}: GPT computes with {expected}; take "
                "another network"
            )
    field(config, "n_head", int, path)
    inner = 4 * whole(field(config, "n_embd", int, path), f"n_embd in {path}")
    if config.get("n_inner") not in (None, inner):
        raise InputError(f"{path} has n_inner = {shown(config['n_inner'])}: expected {inner}")
    name = field({"activation_function": "gelu_new"} | config, "activation_function", str, path)
    if name not in _GELUS:
        raise InputError(
            f"{path} has activation_function = {name!r:.40}: expected one of {', '.join(_GELUS)}"
        )
    return _GELUS[name]


def _published_weights(folder: Path) -> dict[str, Tensor]:
    """Read the weights in a folder of Hugging Face."""
    if (folder / WEIGHTS).exists() or not (folder / _BIN).exists():
        return read_weights(folder / WEIGHTS)
    with opened(folder / _BIN, "weights of a GPT-2") as file:
        size = os.fstat(file.fileno()).st_size
        try:
            if zipfile.is_zipfile(file):
                check_zip(file, folder / _BIN)
            file.seek(0)
            state = load_tensors(file)
        except InputError:
            raise
        except Exception as error:  # a damaged or hostile file can fail in any way
            raise InputError(
                f"{_BIN} cannot be read as weights ({type(error).__name__}): it is damaged, or "
                "holds other things than tensors; nothing in it was executed. Take a folder with "
                "model.safetensors"
            ) from None
    if not isinstance(state, Mapping):
        raise InputError(f"{_BIN} holds {type(state).__name__}: expected weights by name")
    weights = [value for value in state.values() if isinstance(value, Tensor) and dense(value)]
    claimed = sum(weight.nbytes for weight in weights)
    if claimed > 2 * size:  # a published file may hold one matrix under two names
        raise InputError(
            f"{_BIN} claims weights of {claimed:,} bytes, and has {size:,}: expected each weight "
            "to be stored; get the folder again"
        )
    return dict(state)


def _matrix_shape(state: Mapping[str, Any], name: str) -> tuple[int, int]:
    """Return the shape of the matrix of that name."""
    weight = state.get(name)
    if not _is_weight(weight, name) or weight.ndim != 2:
        raise InputError(f"{name} is {_kind(weight)}: expected a matrix, as in a published GPT-2")
    return weight.shape[0], weight.shape[1]


def _published_heads(width: int) -> int:
    if width % 64:
        raise InputError(f"wte.weight has width {width}: expected a multiple of 64; give heads")
    return width // 64


def _fitting(state: Mapping[str, Any], name: str, shape: tuple[int, ...]) -> Tensor:
    """Return the weight of that name, if it has that shape."""
    weight = state.get(name)
    if not _is_weight(weight, name, shape):
        raise InputError(
            f"{name} is {_kind(weight)}: expected shape {shape}; is it a GPT-2 of that size, with "
            "matrices as (in, out)?"
        )
    return weight


def _is_weight(value: Any, name: str, shape: tuple[int, ...] | None = None) -> TypeGuard[Tensor]:
    """Return whether a value is a tensor of that shape; refuse tensors that are not real."""
    if not isinstance(value, Tensor):
        return False
    tensor(value, name, "real")
    return shape is None or tuple(value.shape) == tuple(shape)


def _kind(weight: Any) -> str:
    if weight is None:
        return "missing"
    return f"of shape {tuple(weight.shape)}" if isinstance(weight, Tensor) else f"{weight!r:.60}"
