#include "order/fi_pack.h"

#include <string.h>

enum { LEVELS = 6 }; /* of 64 bits each: more room than 32 bits can tell */

/* The set of the rooms that some row has, for the least one that is large enough. */
typedef struct {
    uint64_t *words[LEVELS];
    int levels;
} rooms;

static size_t rooms_words(uint32_t length)
{
    size_t count = (size_t)length / 64 + 1, all = count;
    while (count > 1) {
        count = (count + 63) / 64;
        all += count;
    }
    return all;
}

static void rooms_init(rooms *set, uint32_t length, uint64_t *words)
{
    size_t count = (size_t)length / 64 + 1;
    memset(words, 0, rooms_words(length) * sizeof(uint64_t));
    set->levels = 0;
    for (;;) {
        set->words[set->levels++] = words;
        words += count;
        if (count == 1)
            break;
        count = (count + 63) / 64;
    }
}

static void rooms_add(rooms *set, uint64_t room)
{
    for (int level = 0; level < set->levels; level++, room >>= 6)
        set->words[level][room >> 6] |= (uint64_t)1 << (room & 63);
}

static void rooms_remove(rooms *set, uint64_t room)
{
    for (int level = 0; level < set->levels; level++, room >>= 6) {
        if ((set->words[level][room >> 6] &= ~((uint64_t)1 << (room & 63))) != 0)
            break;
    }
}

/* The least room of at least `least`, or 0 if there is none; least >= 1. */
static uint64_t rooms_from(const rooms *set, uint64_t least, uint64_t most)
{
    int level = 0;
    if (least > most)
        return 0;
    for (;; level++) {
        /* The words of a level that follow the last number are empty or do not exist. */
        uint64_t word = set->words[level][least >> 6] & (~(uint64_t)0 << (least & 63));
        if (word != 0) {
            least = (least & ~(uint64_t)63) | (uint64_t)__builtin_ctzll(word);
            break;
        }
        if (level + 1 == set->levels)
            return 0;
        most >>= 6;
        least = (least >> 6) + 1;
        if (least > most)
            return 0;
    }
    while (level > 0) {
        level--;
        least = least << 6 | (uint64_t)__builtin_ctzll(set->words[level][least]);
    }
    return least;
}

size_t fi_pack_scratch(uint32_t length, uint32_t n)
{
    /* Behind the set: rows by their room (length + 1 + n), the order of pieces (n), counts of its sort (length + 2). */
    return (rooms_words(length) + length + n + 2) * sizeof(uint64_t);
}

/* A counting sort, pieces of one size staying in order. */
static void order_decreasing(uint32_t length, const uint32_t *sizes, uint32_t n, uint32_t *order, uint32_t *counts)
{
    memset(counts, 0, ((size_t)length + 2) * sizeof(uint32_t));
    for (uint32_t i = 0; i < n; i++)
        counts[length - sizes[i] + 1]++;
    for (uint32_t key = 0; key < length; key++)
        counts[key + 1] += counts[key];
    for (uint32_t i = 0; i < n; i++)
        order[counts[length - sizes[i]]++] = i;
}

uint32_t fi_pack(uint32_t length, const uint32_t *sizes, uint32_t n, uint32_t *rows, void *scratch)
{
    uint64_t *words = scratch;
    uint32_t *heads = (uint32_t *)(words + rooms_words(length)); /* the rows of each room, counted from 1 */
    uint32_t *next = heads + length + 1, *order = next + n;
    uint32_t count = 0;
    rooms set;
    order_decreasing(length, sizes, n, order, order + n);
    rooms_init(&set, length, words);
    memset(heads, 0, ((size_t)length + 1) * sizeof(uint32_t));
    for (uint32_t k = 0; k < n; k++) {
        uint32_t i = order[k], row;
        uint64_t room = rooms_from(&set, sizes[i], length), left;
        if (room == 0) {
            row = count++;
            left = length - sizes[i];
        } else {
            row = heads[room] - 1;
            heads[room] = next[row];
            if (heads[room] == 0)
                rooms_remove(&set, room);
            left = room - sizes[i];
        }
        rows[i] = row;
        if (left > 0) {
            if (heads[left] == 0)
                rooms_add(&set, left);
            next[row] = heads[left];
            heads[left] = row + 1;
        }
    }
    return count;
}

uint32_t fi_pack_pieces(int overlong, uint32_t length, const int64_t *documents, const int64_t *lengths,
                        uint32_t n, uint32_t *sizes, fi_segment *pieces, uint64_t *n_whole)
{
    uint32_t count = 0;
    uint64_t whole = 0;
    for (uint32_t i = 0; i < n; i++) {
        int64_t start = 0, left = lengths[i];
        if (left >= length) {
            if (left > length && overlong == FI_OVERLONG_DROP)
                continue;
            if (overlong == FI_OVERLONG_SPLIT) {
                start = left - left % length;
                whole += (uint64_t)(left / length);
                left -= start;
            } else {
                whole++;
                left = 0;
            }
        }
        if (left > 0) {
            sizes[count] = (uint32_t)left;
            pieces[count++] = (fi_segment){documents[i], start, left};
        }
    }
    *n_whole = whole;
    return count;
}

void fi_pack_segments(uint32_t length, const int64_t *documents, const int64_t *lengths, uint32_t n,
                      int overlong, const fi_segment *pieces, const uint32_t *rows, uint32_t n_pieces,
                      uint32_t n_rows, uint64_t n_whole, const int64_t *places, int64_t *starts,
                      fi_segment *segments)
{
    uint64_t total = n_rows + n_whole, row = n_rows;
    memset(starts, 0, (total + 1) * sizeof(int64_t));
    for (uint32_t i = 0; i < n_pieces; i++)
        starts[places[rows[i]] + 1]++;
    for (uint64_t k = n_rows; k < total; k++)
        starts[places[k] + 1] = 1;
    for (uint64_t k = 0; k < total; k++)
        starts[k + 1] += starts[k];
    for (uint32_t i = 0; i < n_pieces; i++) { /* starts[p] moves to where those of row p end */
        segments[starts[places[rows[i]]]++] = pieces[i];
    }
    for (uint32_t i = 0; i < n; i++) {
        int64_t stop = lengths[i] < length ? 0 : lengths[i] - lengths[i] % length;
        if (lengths[i] > length && overlong != FI_OVERLONG_SPLIT)
            stop = overlong == FI_OVERLONG_DROP ? 0 : length;
        for (int64_t start = 0; start < stop; start += length) {
            segments[starts[places[row++]]++] = (fi_segment){documents[i], start, length};
        }
    }
    for (uint64_t k = total; k > 0; k--)
        starts[k] = starts[k - 1];
    starts[0] = 0;
}
