// Operations that the lanes of a warp do together: shuffles, votes.
#include "state.h"

namespace emu {
namespace {

struct Value {
  uint64_t value;
  unsigned operand;
  int width;
  uint64_t result;
};

Value& of(WarpCall* call) { return *(Value*)call->data; }

void shuffle(WarpCall** lanes, unsigned active) {
  for (int i = 0; i < 32; i++) {
    if (!(active >> i & 1)) continue;
    auto& v = of(lanes[i]);
    const int width = v.width, first = i / width * width, operand = (int)v.operand;
    int from = i;
    switch (lanes[i]->how) {
      case 0: from = first + (operand & (width - 1)); break;
      case 1: from = i - operand < first ? i : i - operand; break;
      case 2: from = i + operand >= first + width ? i : i + operand; break;
      // An xor beyond the lane's own group reads lower groups, and nothing higher.
      case 3: from = (i ^ operand) >= first + width ? i : i ^ operand; break;
    }
    // What a lane that takes no part holds is undefined: a NaN, in every type.
    v.result = from < 32 && (active >> from & 1) ? of(lanes[from]).value : ~uint64_t(0);
  }
}

// __reduce_*_sync of sm_80; values are extended to 64 bits by their sign.
int64_t reduced(WarpCall** lanes, unsigned active) {
  int64_t all = 0;
  bool first = true;
  for (int i = 0; i < 32; i++) {
    if (!(active >> i & 1)) continue;
    const auto one = (int64_t)of(lanes[i]).value;
    if (first) all = one;
    else
      switch (lanes[i]->how) {
        case 6: all += one; break;
        case 7: all = one < all ? one : all; break;
        case 8: all = all < one ? one : all; break;
        case 9: all &= one; break;
        case 10: all |= one; break;
        default: all ^= one;
      }
    first = false;
  }
  return all;
}

void vote(WarpCall** lanes, unsigned active) {
  unsigned ballot = 0;
  for (int i = 0; i < 32; i++)
    if (active >> i & 1 && of(lanes[i]).value) ballot |= 1u << i;
  for (int i = 0; i < 32; i++) {
    if (!(active >> i & 1)) continue;
    auto& v = of(lanes[i]);
    switch (lanes[i]->how) {
      case 0: v.result = ballot; break;
      case 1: v.result = ballot != 0; break;
      case 2: v.result = ballot == active; break;
      case 5:
        v.result = active;
        for (int j = 0; j < 32; j++)
          if (active >> j & 1 && of(lanes[j]).value != v.value) v.result = 0;
        break;
      case 6: case 7: case 8: case 9: case 10: case 11: v.result = (uint64_t)reduced(lanes, active); break;
      case 3:
        v.result = 0;
        for (int j = 0; j < 32; j++)
          if (active >> j & 1 && of(lanes[j]).value == v.value) v.result |= 1u << j;
        break;
      default: v.result = active;
    }
  }
}

uint64_t together(WarpAction action, const char* what, int line, int how, unsigned mask, bool soft, Value v) {
  WarpCall call{action, line, how, mask, soft, what, &v};
  arrive(call);
  return v.result;
}

}  // namespace
}  // namespace emu

using namespace emu;

extern "C" {

uint64_t emu_shuffle(int line, int how, unsigned mask, uint64_t value, unsigned operand, int width) {
  static const char* const names[] = {"__shfl_sync", "__shfl_up_sync", "__shfl_down_sync", "__shfl_xor_sync"};
  if (width < 1 || width > 32 || width & (width - 1)) emu_trap(line, "the width of a shuffle is a power of two up to 32");
  if (!(mask >> (launch.me % 32) & 1)) emu_trap(line, "a lane shuffles that its own mask does not name");
  return together(shuffle, names[how], line, how, mask, false, {value, operand, width, 0});
}

unsigned emu_vote(int line, int how, unsigned mask, uint64_t value) {
  static const char* const names[] = {"__ballot_sync", "__any_sync", "__all_sync", "__match_any_sync", "__syncwarp",
                                      "__match_all_sync", "__reduce_add_sync", "__reduce_min_sync", "__reduce_max_sync",
                                      "__reduce_and_sync", "__reduce_or_sync", "__reduce_xor_sync"};
  return (unsigned)together(vote, names[how], line, how, mask, false, {value, 0, 32, 0});
}

void emu_warp_sync(int line, unsigned mask) { emu_vote(line, 4, mask, 0); }

unsigned emu_activemask(int line) { return (unsigned)together(vote, "__activemask", line, 4, ~0u, true, {}); }
}
