"""SIMD vectors for the compiled kernels: one value per token, eight or sixteen tokens abreast.

Numba vectorises a loop only where LLVM finds it by itself, and never the loop over tokens that
encloses the sum over pairs. Here a vector is a value of its own: ``Vector(float64)`` has 8 lanes,
``Vector(float32)`` has 16 (64 bytes: one AVX-512 register; LLVM splits it into two or four on
narrower machines). Every operation is one IEEE operation per lane, no reassociation, so that a
kernel gives the same bits wherever it runs on one kind of processor.
"""

import operator

from llvmlite import ir
from numba.core import types
from numba.core.typing.templates import AbstractTemplate, infer_global, signature
from numba.extending import intrinsic, lower_builtin, models, register_model

_BYTES = 64


class Vector(types.Type):
    """Numba type of a SIMD vector of `dtype` that fills 64 bytes."""

    def __init__(self, dtype: types.Float) -> None:
        self.dtype = dtype
        self.lanes = _BYTES * 8 // dtype.bitwidth
        super().__init__(name=f"Vector({dtype})")


_VECTORS = {types.float64: Vector(types.float64), types.float32: Vector(types.float32)}


def _float_ir(dtype: types.Float) -> ir.Type:
    return ir.DoubleType() if dtype == types.float64 else ir.FloatType()


def _vector_ir(vector: Vector) -> ir.VectorType:
    return ir.VectorType(_float_ir(vector.dtype), vector.lanes)


def _constant(vector: Vector, value: float) -> ir.Constant:
    return ir.Constant(_vector_ir(vector), [value] * vector.lanes)


def _fma(builder: ir.IRBuilder, a, b, c):
    # IRBuilder.fma knows scalars only; the intrinsic itself is defined for vectors.
    kind = a.type
    name = f"llvm.fma.v{kind.count}{'f64' if kind.element == ir.DoubleType() else 'f32'}"
    function = builder.module.globals.get(name) or ir.Function(
        builder.module, ir.FunctionType(kind, [kind] * 3), name
    )
    return builder.call(function, [a, b, c])


@register_model(Vector)
class _VectorModel(models.PrimitiveModel):
    def __init__(self, dmm, fe_type: Vector) -> None:
        super().__init__(dmm, fe_type, _vector_ir(fe_type))


def _register(symbol, instruction: str) -> None:
    @infer_global(symbol)
    class _Arithmetic(AbstractTemplate):
        def generic(self, args, kws):
            if len(args) == 2 and isinstance(args[0], Vector) and args[0] == args[1]:
                return signature(args[0], *args)
            return None

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
def lanes(typingctx, array):
    """Number of lanes of a vector with the element type of `array` (a compile-time constant)."""
    count = _VECTORS[array.dtype].lanes
    return types.intp(array), lambda context, builder, sig, args: ir.Constant(
        ir.IntType(types.intp.bitwidth), count
    )


@intrinsic
def splat(typingctx, value):
    """Vector with the scalar `value` in every lane."""
    vector = _VECTORS[value]

    def codegen(context, builder, sig, args):
        empty = ir.Constant(_vector_ir(vector), ir.Undefined)
        first = builder.insert_element(empty, args[0], ir.Constant(ir.IntType(32), 0))
        mask = ir.Constant(ir.VectorType(ir.IntType(32), vector.lanes), [0] * vector.lanes)
        return builder.shuffle_vector(first, empty, mask)

    return vector(value), codegen


def _lane_pointer(context, builder, array_type, array, offset, vector: Vector):
    data = context.make_array(array_type)(context, builder, array).data
    return builder.bitcast(builder.gep(data, [offset]), _vector_ir(vector).as_pointer())


@intrinsic
def load(typingctx, array, offset):
    """Vector from the flat contiguous `array`, starting at element `offset`."""
    vector = _VECTORS[array.dtype]

    def codegen(context, builder, sig, args):
        pointer = _lane_pointer(context, builder, sig.args[0], *args, vector)
        return builder.load(pointer, align=array.dtype.bitwidth // 8)

    return vector(array, types.intp), codegen


@intrinsic
def store(typingctx, array, offset, value):
    """Write the vector `value` to the flat contiguous `array`, starting at element `offset`."""

    def codegen(context, builder, sig, args):
        pointer = _lane_pointer(context, builder, sig.args[0], *args[:2], value)
        builder.store(args[2], pointer, align=array.dtype.bitwidth // 8)
        return context.get_dummy_value()

    return types.none(array, types.intp, value), codegen


@intrinsic
def fma(typingctx, a, b, c):
    """a b + c, rounded once."""

    def codegen(context, builder, sig, args):
        return _fma(builder, *args)

    return a(a, b, c), codegen


@intrinsic
def maximum(typingctx, a, b):
    """Larger of a and b, lane by lane."""

    def codegen(context, builder, sig, args):
        return builder.select(builder.fcmp_ordered(">", *args), *args)

    return a(a, b), codegen


@intrinsic
def fold(typingctx, a, b):
    """Sums of neighbouring lanes, first those of a, then those of b."""

    def codegen(context, builder, sig, args):
        even, odd = (
            builder.shuffle_vector(
                *args,
                ir.Constant(
                    ir.VectorType(ir.IntType(32), a.lanes), list(range(start, 2 * a.lanes, 2))
                ),
            )
            for start in (0, 1)
        )
        return builder.fadd(even, odd)

    return a(a, b), codegen


# 2^r on [-1/2, 1/2] as 1 + r q(r), q interpolated at Chebyshev nodes: relative error 2e-17 at
# degree 11 and 5e-9 at degree 6, below half a unit in the last place of either precision.
_EXP2 = {
    types.float64: (
        1.0,
        0.6931471805599453,
        0.24022650695910097,
        0.0555041086648216,
        0.009618129107606888,
        0.0013333558146416936,
        0.0001540353044173605,
        1.525273382983612e-05,
        1.321544258792169e-06,
        1.0178062445845774e-07,
        7.072585949269223e-09,
        4.4549605981865186e-10,
    ),
    types.float32: (
        1.0,
        0.6931471880262288,
        0.24022650760568126,
        0.05550357114219078,
        0.009618082557277852,
        0.0013390863364671234,
        0.0001545316294512069,
    ),
}
# Adding 1.5 * 2^(mantissa bits) rounds to an integer and leaves it in the low bits.
_ROUND = {types.float64: (1.5 * 2.0**52, 64, 52), types.float32: (1.5 * 2.0**23, 32, 23)}


@intrinsic
def exp2(typingctx, s):
    """2^s lane by lane, for s in the range of normal numbers (about -1022..1023, or -126..127).

    s = k + r with k an integer and |r| <= 1/2; 2^r by a polynomial, 2^k added to the exponent
    bits. Per lane: 3 additions, one multiply-add per degree (11 in double precision, 6 in single),
    one shift and one integer addition. There is no check for overflow: callers bound s.
    """
    coefficients = _EXP2[s.dtype]
    rounder, bits, mantissa = _ROUND[s.dtype]

    def codegen(context, builder, sig, args):
        magic = _constant(s, rounder)
        shifted = builder.fadd(args[0], magic)
        r = builder.fsub(args[0], builder.fsub(shifted, magic))
        power = _constant(s, coefficients[-1])
        for coefficient in reversed(coefficients[:-1]):
            power = _fma(builder, power, r, _constant(s, coefficient))
        words = ir.VectorType(ir.IntType(bits), s.lanes)
        exponent = builder.shl(
            builder.bitcast(shifted, words), ir.Constant(words, [mantissa] * s.lanes)
        )
        scaled = builder.add(builder.bitcast(power, words), exponent)
        return builder.bitcast(scaled, _vector_ir(s))

    return s(s), codegen
