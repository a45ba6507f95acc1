// The types of metal_shim.h: vectors of unsigned integers and 16-bit floats.

#pragma once

#include <stdint.h>
#include <string.h>

#include <compare>

using uint = unsigned int;
using ushort = unsigned short;
using uchar = unsigned char;
struct uint2 {
  uint x, y;
};
struct uint3 {
  uint x, y, z;
};

// A 16-bit float. It widens by itself and narrows only when told to; two of them give one of them, rounded.
template <typename Format>
struct Narrow {
  uint16_t bits;
  Narrow() = default;
  explicit Narrow(float wide) : bits(Format::encode(wide)) {}
  explicit Narrow(double wide) : Narrow(float(wide)) {}
  explicit Narrow(int wide) : Narrow(float(wide)) {}
  explicit Narrow(uint wide) : Narrow(float(wide)) {}
  template <typename Other>
  explicit Narrow(Narrow<Other> other) : Narrow(float(other)) {}
  template <typename Element>
    requires requires(Element element) { element.held(); }
  explicit Narrow(Element element) : Narrow(element.held()) {}
  operator float() const { return Format::decode(bits); }
  friend Narrow operator+(Narrow a, Narrow b) { return Narrow(float(a) + float(b)); }
  friend Narrow operator-(Narrow a, Narrow b) { return Narrow(float(a) - float(b)); }
  friend Narrow operator*(Narrow a, Narrow b) { return Narrow(float(a) * float(b)); }
  friend Narrow operator/(Narrow a, Narrow b) { return Narrow(float(a) / float(b)); }
  Narrow& operator+=(Narrow other) { return *this = *this + other; }
  Narrow& operator-=(Narrow other) { return *this = *this - other; }
  Narrow& operator*=(Narrow other) { return *this = *this * other; }
  Narrow& operator/=(Narrow other) { return *this = *this / other; }
};

struct Float16 {
  static uint16_t encode(float wide) {
    const uint16_t sign = signbit(wide) ? 0x8000 : 0;
    if (isnan(wide)) return 0x7e00;
    const float size = fabsf(wide);
    if (size >= 65520.0f) return sign | 0x7c00;
    int exponent;
    frexpf(size, &exponent);
    if (size < 0x1p-14f) exponent = -13;  // down here all numbers have the same spacing
    // Rounding up to 2048 carries into the exponent by itself.
    return sign | uint16_t(int(rintf(ldexpf(size, 11 - exponent))) + ((exponent + 13) << 10));
  }
  static float decode(uint16_t bits) {
    const int exponent = bits >> 10 & 31, mantissa = bits & 1023;
    const float size = exponent == 31  ? (mantissa ? NAN : INFINITY)
                       : exponent == 0 ? ldexpf(float(mantissa), -24)
                                       : ldexpf(float(1024 + mantissa), exponent - 25);
    return bits & 0x8000 ? -size : size;
  }
};

struct BFloat16 {
  static uint16_t encode(float wide) {
    uint32_t bits;
    memcpy(&bits, &wide, 4);
    if (isnan(wide)) return 0x7fc0;
    return uint16_t((bits + 0x7fff + (bits >> 16 & 1)) >> 16);  // to the nearest, ties to even
  }
  static float decode(uint16_t narrow) {
    const uint32_t bits = uint32_t(narrow) << 16;
    float wide;
    memcpy(&wide, &bits, 4);
    return wide;
  }
};

using half = Narrow<Float16>;
using bfloat = Narrow<BFloat16>;
using float16_t = half;
using bfloat16_t = bfloat;
