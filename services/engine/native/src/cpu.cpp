#include "cpu.hpp"

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace pagemesh {
namespace {

constexpr long kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
constexpr long kTileData = 18;               // XFEATURE_XTILEDATA

struct Leaf {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
};

Leaf read_leaf(unsigned leaf, unsigned subleaf) {
  Leaf found;
  __get_cpuid_count(leaf, subleaf, &found.eax, &found.ebx, &found.ecx, &found.edx);
  return found;
}

bool has_avx512() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}

bool has_bf16() { return has_avx512() && (read_leaf(7, 1).eax >> 5 & 1); }

// Tile state is off for a process until it asks (Documentation/arch/x86/xstate.rst).
bool enable_amx() {
  unsigned features = read_leaf(7, 0).edx;
  bool has_tiles = features >> 24 & 1, has_tile_bf16 = features >> 22 & 1, has_tile_int8 = features >> 25 & 1;
  if (!has_bf16() || !has_tiles || !has_tile_bf16 || !has_tile_int8) return false;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

}  // namespace

KernelPath best_kernel_path() {
  static const KernelPath best = enable_amx()   ? KernelPath::amx
                                 : has_bf16()   ? KernelPath::avx512_bf16
                                 : has_avx512() ? KernelPath::avx512
                                                : KernelPath::none;
  return best;
}

bool is_usable(KernelPath path) { return path != KernelPath::none && path <= best_kernel_path(); }

}  // namespace pagemesh
