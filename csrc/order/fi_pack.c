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
        if (count == 1) {
            break;
        }
        count = (count + 63) / 64;
    }
}

static void rooms_add(rooms *set, uint64_t room)
{
    for (int level = 0; level < set->levels; level++, room >>= 6) {
        set->words[level][room >> 6] |= (uint64_t)1 << (room & 63);
    }
}

static void rooms_remove(rooms *set, uint64_t room)
{
    for (int level = 0; level < set->levels; level++, room >>= 6) {
        if ((set->words[level][room >> 6] &= ~((uint64_t)1 << (room & 63))) != 0) {
            break;
        }
    }
}

/* The least room of at least `least`, or 0 if there is none; least >= 1. */
static uint64_t rooms_from(const rooms *set, uint64_t least, uint64_t most)
{
    int level = 0;
    if (least > most) {
        return 0;
    }
    for (;; level++) {
        /* The words of a level that follow the last number are empty or do not exist. */
        uint64_t word = set->words[level][least >> 6] & (~(uint64_t)0 << (least & 63));
        if (word != 0) {
            least = (least & ~(uint64_t)63) | (uint64_t)__builtin_ctzll(word);
            break;
        }
        if (level + 1 == set->levels) {
            return 0;
        }
        most >>= 6;
        least = (least >> 6) + 1;
        if (least > most) {
            return 0;
        }
    }
    while (level > 0) {
        level--;
        least = least << 6 | (uint64_t)__builtin_ctzll(set->words[level][least]);
    }
    return least;
}

static uint32_t tree_leaves(uint32_t n)
{
    uint32_t leaves = 1;
    while (leaves < n) {
        leaves *= 2;
    }
    return leaves;
}

size_t fi_pack_scratch(int method, uint32_t length, uint32_t n)
{
    size_t words;
    if (method == FI_PACK_FIRST_FIT) {
        return 2 * (size_t)tree_leaves(n) * sizeof(uint32_t);
    }
    words = (size_t)length + 1 + n;
    if (method == FI_PACK_DECREASING) {
        words += (size_t)length + 2 + n;
    }
    return rooms_words(length) * sizeof(uint64_t) + (words + words % 2) * sizeof(uint32_t);
}

static uint32_t first_fit(uint32_t length, const uint32_t *sizes, uint32_t n, uint32_t *rows, uint32_t *tree)
{
    uint32_t leaves = tree_leaves(n), count = 0;
    for (uint32_t node = 1; node < 2 * leaves; node++) {
        tree[node] = length; /* the most room of a row below it */
    }
    for (uint32_t i = 0; i < n; i++) {
        uint32_t node = 1, size = sizes[i];
        while (node < leaves) {
            node = 2 * node + (tree[2 * node] < size);
        }
        rows[i] = node - leaves;
        count = rows[i] >= count ? rows[i] + 1 : count;
        tree[node] -= size;
        while (node > 1) {
            uint32_t left = tree[node & ~1u], right = tree[node | 1u], most = left > right ? left : right;
            node /= 2;
            if (tree[node] == most) {
                break;
            }
            tree[node] = most;
        }
    }
    return count;
}

static uint32_t best_fit(uint32_t length, const uint32_t *sizes, const uint32_t *order, uint32_t n,
                         uint32_t *rows, uint64_t *words, uint32_t *lists)
{
    rooms set;
    uint32_t *heads = lists, *next = lists + length + 1; /* the rows of each room, counted from 1 */
    uint32_t count = 0;
    rooms_init(&set, length, words);
    memset(heads, 0, ((size_t)length + 1) * sizeof(uint32_t));
    for (uint32_t k = 0; k < n; k++) {
        uint32_t i = order == NULL ? k : order[k], row;
        uint64_t room = rooms_from(&set, sizes[i], length), left;
        if (room == 0) {
            row = count++;
            left = length - sizes[i];
        } else {
            row = heads[room] - 1;
            heads[room] = next[row];
            if (heads[room] == 0) {
                rooms_remove(&set, room);
            }
            left = room - sizes[i];
        }
        rows[i] = row;
        if (left > 0) {
            if (heads[left] == 0) {
                rooms_add(&set, left);
            }
            next[row] = heads[left];
            heads[left] = row + 1;
        }
    }
    return count;
}

uint32_t fi_pack(int method, uint32_t length, const uint32_t *sizes, uint32_t n, uint32_t *rows,
                 void *scratch)
{
    uint64_t *words = scratch;
    uint32_t *lists = (uint32_t *)(words + rooms_words(length)), *order = NULL, *counts;
    if (method == FI_PACK_FIRST_FIT) {
        return first_fit(length, sizes, n, rows, scratch);
    }
    if (method == FI_PACK_DECREASING) { /* a counting sort, pieces of one size staying in order */
        order = lists + length + 1 + n;
        counts = order + n;
        memset(counts, 0, ((size_t)length + 2) * sizeof(uint32_t));
        for (uint32_t i = 0; i < n; i++) {
            counts[length - sizes[i] + 1]++;
        }
        for (uint32_t key = 0; key < length; key++) {
            counts[key + 1] += counts[key];
        }
        for (uint32_t i = 0; i < n; i++) {
            order[counts[length - sizes[i]]++] = i;
        }
    }
    return best_fit(length, sizes, order, n, rows, words, lists);
}

uint32_t fi_pack_pieces(int overlong, uint32_t length, const int64_t *documents, const int64_t *lengths,
                        uint32_t n, uint32_t *sizes, fi_segment *pieces, uint64_t *n_whole)
{
    uint32_t count = 0;
    uint64_t whole = 0;
    for (uint32_t i = 0; i < n; i++) {
        int64_t start = 0, left = lengths[i];
        if (left >= length) {
            if (left > length && overlong == FI_OVERLONG_DROP) {
                continue;
            }
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
    for (uint32_t i = 0; i < n_pieces; i++) {
        starts[places[rows[i]] + 1]++;
    }
    for (uint64_t k = n_rows; k < total; k++) {
        starts[places[k] + 1] = 1;
    }
    for (uint64_t k = 0; k < total; k++) {
        starts[k + 1] += starts[k];
    }
    for (uint32_t i = 0; i < n_pieces; i++) { /* starts[p] moves to where those of row p end */
        segments[starts[places[rows[i]]]++] = pieces[i];
    }
    for (uint32_t i = 0; i < n; i++) {
        int64_t stop = lengths[i] < length ? 0 : lengths[i] - lengths[i] % length;
        if (lengths[i] > length && overlong != FI_OVERLONG_SPLIT) {
            stop = overlong == FI_OVERLONG_DROP ? 0 : length;
        }
        for (int64_t start = 0; start < stop; start += length) {
            segments[starts[places[row++]]++] = (fi_segment){documents[i], start, length};
        }
    }
    for (uint64_t k = total; k > 0; k--) {
        starts[k] = starts[k - 1];
    }
    starts[0] = 0;
}
