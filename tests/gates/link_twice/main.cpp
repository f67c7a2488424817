// Two parts of one program, each with every header: they must link, and share what is one per
// process.

#include <cstdio>

const void* address_seen_by_one();
const void* address_seen_by_two();
int version_seen_by_one();
int version_seen_by_two();

int main() {
  if (version_seen_by_one() != version_seen_by_two()) {
    std::puts("the parts see two versions");
    return 1;
  }
  if (address_seen_by_one() != address_seen_by_two()) {
    std::puts("the parts have a codebook cache each");
    return 1;
  }
  return 0;
}
