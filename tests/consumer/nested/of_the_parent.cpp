static_assert(__cplusplus == 201703L, "the parent's own files keep the parent's standard");

int of_the_parent() {
  return 0;
}
