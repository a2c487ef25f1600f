"""SIMD vectors for the compiled kernels: eight or sixteen lanes, one token per lane.

Numba vectorises a loop only where LLVM finds it by itself, and never the loop over tokens that
encloses the sum over pairs. Here a vector is a type: ``Vector(float64)`` has 8 lanes,
``Vector(float32)`` has 16 (64 bytes: one AVX-512 register; LLVM splits it into two or four on
narrower machines). Every operation is one IEEE operation per lane, no reassociation, so that a
kernel gives the same bits wherever it runs on one kind of processor.
"""

import operator
import platform
from collections.abc import Iterable

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic, lower_builtin, models, register_model, type_callable

from wflow._core.compiler.undocumented import processor

_BYTES = 64


class Vector(types.Type):
    """Numba type of a SIMD vector of `dtype` that fills 64 bytes."""

    def __init__(self, dtype: types.Float) -> None:
        self.dtype = dtype
        self.lanes = _BYTES * 8 // dtype.bitwidth
        super().__init__(name=f"Vector({dtype})")


VECTORS = {types.float64: Vector(types.float64), types.float32: Vector(types.float32)}


def float_ir(dtype: types.Float) -> ir.Type:
    return ir.DoubleType() if dtype == types.float64 else ir.FloatType()


def _vector_ir(vector: Vector) -> ir.VectorType:
    return ir.VectorType(float_ir(vector.dtype), vector.lanes)


def _constant(vector: Vector, value: float) -> ir.Constant:
    return ir.Constant(_vector_ir(vector), [value] * vector.lanes)


def _function(builder: ir.IRBuilder, name: str, result: ir.Type, arguments: list[ir.Type]):
    """The LLVM function of that name, declared once in a module."""
    return builder.module.globals.get(name) or ir.Function(
        builder.module, ir.FunctionType(result, arguments), name
    )


def _align_stack(builder: ir.IRBuilder) -> None:
    """Begin the stack of the function at a multiple of 64 bytes.

    LLVM keeps 16, and a vector for which there is no register may then lie across two cache lines,
    depending on where the stack of the process begins. LLVM drops this where it inlines the
    function: one whose vectors all come from inlined functions calls `align_stack`.
    """
    attributes = builder.function.attributes
    attributes.alignstack = _BYTES
    attributes.add("nounwind")  # llvmlite writes no attributes where there are none by name


def splat_ir(builder: ir.IRBuilder, kind: ir.VectorType, value):
    _align_stack(builder)
    empty = ir.Constant(kind, ir.Undefined)
    first = builder.insert_element(empty, value, ir.Constant(ir.IntType(32), 0))
    mask = ir.Constant(ir.VectorType(ir.IntType(32), kind.count), [0] * kind.count)
    return builder.shuffle_vector(first, empty, mask)


def fma_ir(builder: ir.IRBuilder, a, b, c):
    # IRBuilder.fma knows scalars only; the intrinsic itself is defined for vectors.
    kind = a.type
    name = f"llvm.fma.v{kind.count}{'f64' if kind.element == ir.DoubleType() else 'f32'}"
    return builder.call(_function(builder, name, kind, [kind] * 3), [a, b, c])


def native_registers(context) -> tuple[int, int]:
    """Bytes of a vector register of the processor that code is compiled for, and their number."""
    features = processor(context.codegen())[2].split(",")
    if "+avx512f" in features:
        return 64, 32
    if "+avx" in features:
        return 32, 16
    return 16, 16 if platform.machine() in ("x86_64", "AMD64") else 32


def native_lanes(context, dtype: types.Float) -> int:
    """Lanes of such a register, at most those of a `Vector`."""
    return min(native_registers(context)[0], _BYTES) * 8 // dtype.bitwidth


@register_model(Vector)
class _VectorModel(models.PrimitiveModel):
    def __init__(self, dmm, fe_type: Vector) -> None:
        super().__init__(dmm, fe_type, _vector_ir(fe_type))


def _register(symbol, instruction: str) -> None:
    @type_callable(symbol)
    def _arithmetic(context):
        def result(a, b):
            return a if isinstance(a, Vector) and a == b else None

        return result

    @lower_builtin(symbol, Vector, Vector)
    def _lower(context, builder, sig, args):
        return getattr(builder, instruction)(*args)


for _symbol, _instruction in (
    (operator.add, "fadd"),
    (operator.sub, "fsub"),
    (operator.mul, "fmul"),
    (operator.truediv, "fdiv"),
):
    _register(_symbol, _instruction)


@intrinsic
def align_stack(typingctx):
    """Begin the stack of this function at a multiple of 64 bytes, as the vectors that lie in it.

    `lanes`, `splat`, `load`, `store`, the sweeps and the tiles do so in the function that calls
    them; one that only calls functions which are inlined into it needs this.
    """

    def codegen(context, builder, sig, args):
        _align_stack(builder)
        return context.get_dummy_value()

    return types.none(), codegen


@intrinsic
def lanes(typingctx, array):
    """Number of lanes of a vector with the element type of `array` (a compile-time constant)."""
    count = VECTORS[array.dtype].lanes

    def codegen(context, builder, sig, args):
        _align_stack(builder)
        return ir.Constant(ir.IntType(types.intp.bitwidth), count)

    return types.intp(array), codegen


@intrinsic
def register_lanes(typingctx, array):
    """Lanes of a register of the processor with the element type of `array`: at most `lanes`."""

    def codegen(context, builder, sig, args):
        return ir.Constant(ir.IntType(types.intp.bitwidth), native_lanes(context, array.dtype))

    return types.intp(array), codegen


@intrinsic
def splat(typingctx, value):
    """Vector with the scalar `value` in every lane."""
    vector = VECTORS[value]

    def codegen(context, builder, sig, args):
        return splat_ir(builder, _vector_ir(vector), args[0])

    return vector(value), codegen


def lane_pointer(context, builder, array_type, array, offset, kind: ir.VectorType):
    _align_stack(builder)
    data = context.make_array(array_type)(context, builder, array).data
    return builder.bitcast(builder.gep(data, [offset]), kind.as_pointer())


@intrinsic
def load(typingctx, array, offset):
    """Vector from the flat contiguous `array`, starting at element `offset`."""
    vector = VECTORS[array.dtype]

    def codegen(context, builder, sig, args):
        pointer = lane_pointer(context, builder, sig.args[0], *args, _vector_ir(vector))
        return builder.load(pointer, align=array.dtype.bitwidth // 8)

    return vector(array, types.intp), codegen


@intrinsic
def load_wide(typingctx, array, offset):
    """Vector of doubles from 8 elements of `array`, of either precision, from `offset` on."""
    vector = VECTORS[types.float64]

    def codegen(context, builder, sig, args):
        dtype = sig.args[0].dtype
        kind = ir.VectorType(float_ir(dtype), vector.lanes)
        pointer = lane_pointer(context, builder, sig.args[0], *args, kind)
        value = builder.load(pointer, align=dtype.bitwidth // 8)
        return value if dtype == types.float64 else builder.fpext(value, _vector_ir(vector))

    return vector(array, types.intp), codegen


@intrinsic
def store(typingctx, array, offset, value):
    """Write the vector `value` to the flat contiguous `array`, starting at element `offset`."""

    def codegen(context, builder, sig, args):
        pointer = lane_pointer(context, builder, sig.args[0], *args[:2], _vector_ir(value))
        builder.store(args[2], pointer, align=array.dtype.bitwidth // 8)
        return context.get_dummy_value()

    return types.none(array, types.intp, value), codegen


@intrinsic
def fma(typingctx, a, b, c):
    """a b + c, rounded once."""

    def codegen(context, builder, sig, args):
        return fma_ir(builder, *args)

    return a(a, b, c), codegen


@intrinsic
def maximum(typingctx, a, b):
    """Larger of a and b, lane by lane; b where either is NaN."""

    def codegen(context, builder, sig, args):
        return builder.select(builder.fcmp_ordered(">", *args), *args)

    return a(a, b), codegen


@intrinsic
def minimum(typingctx, a, b):
    """Smaller of a and b, lane by lane; b where either is NaN."""

    def codegen(context, builder, sig, args):
        return builder.select(builder.fcmp_ordered("<", *args), *args)

    return a(a, b), codegen


@intrinsic
def where_less(typingctx, a, b, x, y):
    """Lane by lane x where a < b, and y elsewhere."""

    def codegen(context, builder, sig, args):
        return builder.select(builder.fcmp_ordered("<", *args[:2]), *args[2:])

    return x(a, b, x, y), codegen


@intrinsic
def square_root(typingctx, a):
    """Square root of a, lane by lane, correctly rounded."""

    def codegen(context, builder, sig, args):
        kind = args[0].type
        name = f"llvm.sqrt.v{kind.count}{'f64' if a.dtype == types.float64 else 'f32'}"
        return builder.call(_function(builder, name, kind, [kind]), args)

    return a(a), codegen


@intrinsic
def least_lane(typingctx, a):
    """Smallest lane of a vector without NaN."""

    def codegen(context, builder, sig, args):
        (left,) = args
        step = a.lanes // 2
        while step:
            places = [k ^ step for k in range(a.lanes)]
            mask = ir.Constant(ir.VectorType(ir.IntType(32), a.lanes), places)
            other = builder.shuffle_vector(left, left, mask)
            left = builder.select(builder.fcmp_ordered("<", left, other), left, other)
            step //= 2
        return builder.extract_element(left, ir.Constant(ir.IntType(32), 0))

    return a.dtype(a), codegen


@intrinsic
def lowest_lane(typingctx, a):
    """Smallest lane of a vector, -inf where one is NaN."""

    def codegen(context, builder, sig, args):
        vector = sig.args[0]
        value = args[0]
        ordered = builder.fcmp_ordered("ord", value, value)
        value = builder.select(ordered, value, _constant(vector, float("-inf")))
        distance = vector.lanes // 2
        while distance:
            places = [k ^ distance for k in range(vector.lanes)]
            mask = ir.Constant(ir.VectorType(ir.IntType(32), vector.lanes), places)
            other = builder.shuffle_vector(value, value, mask)
            value = builder.select(builder.fcmp_ordered("<", other, value), other, value)
            distance //= 2
        return builder.extract_element(value, ir.Constant(ir.IntType(32), 0))

    return a.dtype(a), codegen


@intrinsic
def first_equal(typingctx, a, b):
    """Number of the first lane in which a and b are equal; the number of lanes if there is none."""

    def codegen(context, builder, sig, args):
        bits = ir.IntType(2 * a.lanes)
        equal = builder.bitcast(builder.fcmp_ordered("==", *args), ir.IntType(a.lanes))
        end = ir.Constant(bits, 1 << a.lanes)
        found = builder.or_(builder.zext(equal, bits), end)
        place = builder.cttz(found, ir.Constant(ir.IntType(1), 1))
        return builder.zext(place, ir.IntType(types.intp.bitwidth))

    return types.intp(a, b), codegen


@intrinsic
def lane_sums(typingctx, array, offset, step):
    """Vector whose lane k is the sum of the lanes of the vector at `offset` + k `step`.

    Pairs of vectors are merged, then pairs of pairs: lane k of the sum of a and b at distance s is
    a_k + a_(k xor s) where k has no bit s and b_k + b_(k xor s) where it has. Three instructions a
    merge, one of them a shuffle.
    """
    vector = VECTORS[array.dtype]
    count = vector.lanes

    def codegen(context, builder, sig, args):
        array, offset, step = args
        align = vector.dtype.bitwidth // 8

        def pick(a, b, places):
            mask = ir.Constant(ir.VectorType(ir.IntType(32), count), places)
            return builder.shuffle_vector(a, b, mask)

        parts = []
        for _ in range(count):
            pointer = lane_pointer(context, builder, sig.args[0], array, offset, _vector_ir(vector))
            parts.append(builder.load(pointer, align=align))
            offset = builder.add(offset, step)
        distance = 1
        while distance < count:
            stay = [k + (count if k & distance else 0) for k in range(count)]
            cross = [(k ^ distance) + (count if k & distance else 0) for k in range(count)]
            parts = [
                builder.fadd(pick(a, b, stay), pick(a, b, cross))
                for a, b in zip(parts[::2], parts[1::2], strict=True)
            ]
            distance *= 2
        return parts[0]

    return vector(array, types.intp, types.intp), codegen


# 2^r on [-1/32, 1/32] as 1 + r q(r), q interpolated at Chebyshev nodes: relative error 1.4e-17 in
# double and 2.3e-9 in single precision, below half a unit in the last place of either.
_EXP2 = {
    types.float64: (
        0.6931471805599457,
        0.24022650695910075,
        0.0555041086566393,
        0.009618129106919537,
        0.0013333781576784268,
        0.00015403723980749256,
    ),
    types.float32: (0.6931471805599453, 0.2402335515698872, 0.05550508525196963),
}
_STEPS = 16  # 2^(k/16), k = -8..7, by table: one register of singles, two of doubles
_MANTISSA = {types.float64: 52, types.float32: 23}


def _table(dtype: types.Float) -> list[int]:
    """Bit patterns t_k with t_k + (k << mantissa - 4) = 2^(k/16), in the order k mod 16.

    Shifting an integer 16 e + k into the exponent leaves k in the mantissa; the table takes it off.
    """
    mantissa = _MANTISSA[dtype]
    kind, word, bits = (
        (np.float64, np.uint64, 64) if dtype == types.float64 else (np.float32, np.uint32, 32)
    )
    patterns = []
    for place in range(_STEPS):
        k = place if place < _STEPS // 2 else place - _STEPS
        pattern = int(np.array(2.0 ** (k / _STEPS), kind).view(word))
        patterns.append((pattern - (k << (mantissa - 4))) % 2**bits)
    return patterns


def _look_up(context, builder, dtype: types.Float, words):
    """Entry of the table at the low four bits of each lane of `words`."""
    patterns, element, count = _table(dtype), words.type.element, words.type.count
    kind = ir.VectorType(float_ir(dtype), count)

    def entries(first: int, number: int):
        some = ir.Constant(ir.VectorType(element, number), patterns[first : first + number])
        return builder.bitcast(some, ir.VectorType(float_ir(dtype), number))

    size, _ = native_registers(context)
    if size == _BYTES == count * element.width // 8:
        name = "vpermi2var.pd" if dtype == types.float64 else "permvar.sf"
        halves = [entries(at, count) for at in range(0, _STEPS, count)]
        arguments = [halves[0], words, *halves[1:]]
        function = _function(
            builder, f"llvm.x86.avx512.{name}.512", kind, [a.type for a in arguments]
        )
        return builder.call(function, arguments)
    if size == 32 and count == 8 and element.width == 32:
        function = _function(builder, "llvm.x86.avx2.permps", kind, [kind, words.type])
        low, high = (builder.call(function, [entries(at, 8), words]) for at in (0, 8))
        move = ir.Constant(words.type, [28] * count)  # the fourth bit to the sign
        negative = builder.icmp_signed(
            "<", builder.shl(words, move), ir.Constant(words.type, [0] * count)
        )
        return builder.select(negative, high, low)
    # Elsewhere lane by lane from memory: the same bits, at the price of a load per lane.
    symbol = f"wflow.exp2.{element.width}"
    table = builder.module.globals.get(symbol)
    if table is None:
        constant = ir.Constant(ir.ArrayType(element, _STEPS), patterns)
        table = ir.GlobalVariable(builder.module, constant.type, symbol)
        table.linkage, table.global_constant, table.initializer = "internal", True, constant
    zero = ir.Constant(ir.IntType(32), 0)
    places = builder.and_(words, ir.Constant(words.type, [_STEPS - 1] * count))
    found = ir.Constant(words.type, ir.Undefined)
    for lane in range(count):
        at = ir.Constant(ir.IntType(32), lane)
        place = builder.gep(table, [zero, builder.extract_element(places, at)], inbounds=True)
        found = builder.insert_element(found, builder.load(place), at)
    return builder.bitcast(found, kind)


def exp2_together(context, builder, dtype: types.Float, exponents):
    """LLVM values of 2^s for several vectors s, step by step in turn, so that they overlap."""
    kind = exponents[0].type
    words = ir.VectorType(ir.IntType(dtype.bitwidth), kind.count)

    def constant(value: float):
        return ir.Constant(kind, [value] * kind.count)

    # Adding 1.5 * 2^(mantissa - 4) rounds to a multiple of 1/16 and leaves it in the low bits.
    mantissa = _MANTISSA[dtype]
    magic = constant(1.5 * 2.0 ** (mantissa - 4))
    move = ir.Constant(words, [mantissa - 4] * kind.count)
    shifted = [builder.fadd(s, magic) for s in exponents]
    r = [
        builder.fsub(s, builder.fsub(near, magic))
        for s, near in zip(exponents, shifted, strict=True)
    ]
    scales = []
    for near in shifted:
        bits = builder.bitcast(near, words)
        entry = builder.bitcast(_look_up(context, builder, dtype, bits), words)
        scales.append(builder.bitcast(builder.add(entry, builder.shl(bits, move)), kind))
    *rest, last = _EXP2[dtype]
    q = [constant(last)] * len(r)
    for coefficient in reversed(rest):
        q = [fma_ir(builder, a, b, constant(coefficient)) for a, b in zip(q, r, strict=True)]
    gains = [builder.fmul(a, b) for a, b in zip(q, r, strict=True)]
    return [fma_ir(builder, a, b, a) for a, b in zip(scales, gains, strict=True)]


def _in_parts(builder, vector, count: int) -> list:
    """A vector as vectors of `count` lanes."""
    places = [range(at, at + count) for at in range(0, vector.type.count, count)]
    return [_shuffled(builder, vector, vector, lanes) for lanes in places]


def _joined(builder, parts: list):
    """One vector of the lanes of several, a power of two of them."""
    while len(parts) > 1:
        parts = [
            _shuffled(builder, a, b, range(2 * a.type.count))
            for a, b in zip(parts[::2], parts[1::2], strict=True)
        ]
    return parts[0]


def _shuffled(builder, a, b, places: Iterable[int]):
    """Vector of the lanes at `places` of a, continued by b."""
    mask = list(places)
    mask_ir = ir.Constant(ir.VectorType(ir.IntType(32), len(mask)), mask)
    return builder.shuffle_vector(a, b, mask_ir)


@intrinsic
def exp2(typingctx, s):
    """2^s lane by lane, for s in the range of normal numbers (about -1022..1023, or -126..127).

    s = k/16 + r with k an integer and |r| <= 1/32: 2^(k/16) from a table of 16, its integer part
    added to the exponent bits; 2^r by a polynomial of degree 6 (3 in single precision). Per lane 13
    instructions of the price of a multiply-add (10 in single precision). Relative error below one
    unit in the last place. There is no check for overflow: callers bound s.
    """

    def codegen(context, builder, sig, args):
        parts = _in_parts(builder, args[0], native_lanes(context, s.dtype))
        return _joined(builder, exp2_together(context, builder, s.dtype, parts))

    return s(s), codegen
