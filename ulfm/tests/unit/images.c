/* What a process keeps: blocks with their users, catalogs, images by name and version. */
#include "unit.h"

static void a_block_lives_as_long_as_somebody_uses_it(void) {
    for (uint32_t len = 1; len <= BLOCK_BYTES;
         len = len == 1 ? BLOCK_BYTES / 2 : len + BLOCK_BYTES / 4) {
        struct block *block = block_new(len);
        CHECK(block && block->len == len && block->refs == 1);
        memset(block->data, 0x5a, len);
        CHECK(block_share(block) == block && block->refs == 2);
        block_release(block);
        CHECK(block->refs == 1 && block->data[len - 1] == 0x5a);
        block_release(block);
    }
    CHECK(block_share(NULL) == NULL);
    block_release(NULL);
    block_free_pool();
}

static void full_blocks_do_not_overlap_and_are_used_again(void) {
    enum { COUNT = 40 }; /* of more than one slab */
    struct block *blocks[COUNT];
    for (int i = 0; i < COUNT; i++)
        memset((blocks[i] = block_new(BLOCK_BYTES))->data, i, BLOCK_BYTES);
    for (int i = 0; i < COUNT; i++)
        CHECK(blocks[i]->data[0] == i && blocks[i]->data[BLOCK_BYTES - 1] == i);
    unsigned char *data = blocks[7]->data;
    block_release(blocks[7]);
    blocks[7] = block_new(BLOCK_BYTES);
    CHECK(blocks[7]->data == data);
    for (int i = 0; i < COUNT; i++) block_release(blocks[i]);
    block_free_pool();
}

static void blocks_of_a_catalog_end_at_the_borders_of_its_data(void) {
    struct entry entries[] = {{.name = "a", .bytes = BLOCK_BYTES + 5},
                              {.name = "b", .bytes = 0},
                              {.name = "c", .bytes = BLOCK_BYTES}};
    struct catalog catalog = {3, entries};
    CHECK_EQUAL(catalog_bytes(&catalog), 2 * BLOCK_BYTES + 5);
    CHECK_EQUAL(catalog_blocks(&catalog), 3);
    CHECK_EQUAL(catalog_block_len(&catalog, 0), BLOCK_BYTES);
    CHECK_EQUAL(catalog_block_len(&catalog, 1), 5);
    CHECK_EQUAL(catalog_block_len(&catalog, 2), BLOCK_BYTES);
    CHECK_EQUAL(catalog_block_len(&catalog, 3), 0);
}

static void a_copied_catalog_is_equal_and_its_own(void) {
    struct entry entry = {.name = "a", .bytes = 5, .element = 1};
    struct catalog catalog = {1, &entry}, copy = catalog_copy(&catalog), none = {0};
    CHECK(catalog_equal(&catalog, &copy) && !catalog_equal(&catalog, &none) &&
          catalog_equal(&none, &none));
    entry.bytes++;
    CHECK(!catalog_equal(&catalog, &copy));
    catalog_free(&copy);
    CHECK(copy.count == 0 && copy.entry == NULL);
}

static struct image *keep(eyrie_ulfm_job *job, enum kind kind, int rank, int64_t version) {
    struct image *image = image_new(kind, rank, version, 1);
    image->block[0] = block_new(8);
    memset(image->block[0]->data, rank, 8);
    image->sum[0] = eyrie_checksum(image->block[0]->data, 8);
    image_keep(job, image);
    return image;
}

static void images_are_found_by_kind_rank_and_version(void) {
    eyrie_ulfm_job job = {0};
    struct image *own = keep(&job, OWN, 1, 3), *copy = keep(&job, COPY, 1, 3),
                 *older = keep(&job, OWN, 1, 2);
    CHECK(image_find(&job, OWN, 1, 3) == own && image_find(&job, COPY, 1, 3) == copy &&
          image_find(&job, OWN, 1, 2) == older);
    CHECK(image_find(&job, OWN, 2, 3) == NULL && image_find(&job, HEADER, 1, 3) == NULL &&
          image_find(&job, OWN, 1, 4) == NULL);
    struct image *again = keep(&job, OWN, 1, 3); /* replaces the first */
    CHECK(image_find(&job, OWN, 1, 3) == again);
    int count = 0;
    for (struct image *image = job.images; image; image = image->next) count++;
    CHECK_EQUAL(count, 3);
    image_drop_versions(&job, 3, 3);
    CHECK(image_find(&job, OWN, 1, 2) == NULL && image_find(&job, OWN, 1, 3) == again);
    while (job.images) image_drop(&job, job.images);
}

static void parities_are_found_by_stripe_and_number(void) {
    eyrie_ulfm_job job = {0};
    struct image *parity[4];
    for (int i = 0; i < 4; i++) {
        parity[i] = image_new(PARITY, 0, 1, 0);
        parity[i]->stripe = i / 2;
        parity[i]->which = i % 2;
        image_keep(&job, parity[i]);
    }
    for (int i = 0; i < 4; i++) CHECK(image_find_parity(&job, 0, i / 2, i % 2, 1) == parity[i]);
    CHECK(image_find_parity(&job, 0, 2, 0, 1) == NULL &&
          image_find_parity(&job, 1, 0, 0, 1) == NULL);
    while (job.images) image_drop(&job, job.images);
}

static void damage_of_one_bit_is_found(void) {
    eyrie_ulfm_job job = {0};
    struct image *image = keep(&job, OWN, 1, 1);
    CHECK(image_intact(image));
    image->block[0]->data[7] ^= 0x10;
    CHECK(!image_intact(image));
    image_drop(&job, image);
    struct image *header = image_new(HEADER, 1, 1, 2); /* has sums and no blocks */
    header->sum[0] = 1;
    CHECK(image_intact(header));
    image_free(header);
}

int main(void) {
    static const struct test tests[] = {
        TEST(a_block_lives_as_long_as_somebody_uses_it),
        TEST(full_blocks_do_not_overlap_and_are_used_again),
        TEST(blocks_of_a_catalog_end_at_the_borders_of_its_data),
        TEST(a_copied_catalog_is_equal_and_its_own),
        TEST(images_are_found_by_kind_rank_and_version),
        TEST(parities_are_found_by_stripe_and_number),
        TEST(damage_of_one_bit_is_found),
    };
    return RUN(tests);
}
