/* A table of entries in a file, or in memory without a name, that processes fill and read at once.
 *
 * The file: a header of words, the keys of processes, an index of two words a row, the entries. The
 * first word of a row is 0 (empty), a claim (a process stores the row), or a place (an entry is
 * there); the second one is the stamp of the opening in which the entry was checked. Entries are
 * written before their place is, and space is used once: whoever is killed leaves an empty row and
 * loses the space of an entry. Words are trusted for nothing but the offset to read from.
 */
#ifndef FI_CACHE_H
#define FI_CACHE_H

#include "base/fi_base.h"

#define FI_CACHE_PLACE ((uint64_t)1 << 63)
#define FI_CACHE_CLAIM ((uint64_t)1 << 62)
#define FI_CACHE_TOKENS 1024u
#define FI_CACHE_KEY_MASK (((uint64_t)1 << 40) - 1) /* bits of a key */
#define FI_CACHE_HEAD 64u /* bytes before the content of an entry, and the unit of places */
#define FI_CACHE_VIEWS 48
#define FI_CACHE_PEEK 1024u /* bytes of an entry that fi_cache_peek reads at most, its head included */

enum fi_cache_word { /* words of the header that change; those before describe the file */
    FI_CACHE_END = 128, /* where the next entry goes */
    FI_CACHE_BASE,      /* END less the bytes that are in use */
    FI_CACHE_STAMP,     /* of this opening */
    FI_CACHE_HITS,
    FI_CACHE_STORED,
    FI_CACHE_FAILED,
    FI_CACHE_UNCACHED,
    FI_CACHE_DAMAGED,
    FI_CACHE_FETCH_NS,
    FI_CACHE_COMMITTED, /* bytes that are in use, those of unfinished entries left out */
    FI_CACHE_FULL,      /* an fi_cache_full */
    FI_CACHE_RETRY_NS,  /* until then nothing is stored after a refusal by the system */
    FI_CACHE_TOLD,      /* bits of what one of the processes has told its user */
    FI_CACHE_LARGEST,   /* bytes of the largest entry that was stored */
    FI_CACHE_REFUSALS,  /* larger ones in a row that have found no room */
    FI_CACHE_CLEARED,   /* END when the cache was cleared last */
    FI_CACHE_WRITTEN,   /* where the last entry ends: a file that is shorter was cut */
    FI_CACHE_KEYS = 512, /* for each token the key of its present owner */
    FI_CACHE_INDEX = FI_CACHE_KEYS + FI_CACHE_TOKENS
};

enum fi_cache_full {
    FI_CACHE_HAS_ROOM,
    FI_CACHE_AT_LIMIT,
    FI_CACHE_NO_MEMORY, /* the machine's memory, or a control group's, is short */
    FI_CACHE_NO_SPACE   /* a write was refused */
};

enum fi_cache_state { FI_CACHE_FOUND, FI_CACHE_NONE, FI_CACHE_BAD, FI_CACHE_REFUSED };

typedef struct fi_cache {
    int fd;
    _Atomic uint64_t *words;
    uint64_t length; /* rows */
    uint64_t limit;  /* bytes */
    bool takes_memory; /* entries take memory of the machine */
    bool has_sums;     /* entries have checksums */
    /* Of a file that is read-only, whose stamps cannot be written: for each row the word whose entry
     * this process has checked, or 0. NULL where stamps tell. */
    _Atomic uint64_t *checked;
    _Atomic(char *) views[FI_CACHE_VIEWS]; /* of the first 2^i bytes of the file, or NULL */
    _Atomic uint64_t seen;                 /* bytes that were found to lie in the file */
} fi_cache;

/* The content begins with `fields` bytes for those who know what the signature means, not 0: they find
 * the parts of the row there, without the rest. */
typedef struct fi_cache_entry {
    uint64_t sum, row, offset, size, signature, fields, zeros[2];
} fi_cache_entry;

/* A part of an entry that lies elsewhere in memory; what no part covers is zero. */
typedef struct fi_cache_part {
    const char *bytes;
    uint64_t offset, size; /* from the head on */
} fi_cache_part;

/* Bytes before the entries; for more than 2**58 rows as for 2**58, which no file has room for. */
uint64_t fi_cache_start(uint64_t length);

/* Acquire, with the release of fi_cache_swap and fi_cache_put: who sees a place sees its stamp. */
static inline uint64_t fi_cache_load(const fi_cache *cache, uint64_t word)
{
    return atomic_load_explicit(cache->words + word, memory_order_acquire);
}

static inline void fi_cache_put(fi_cache *cache, uint64_t word, uint64_t value)
{
    atomic_store_explicit(cache->words + word, value, memory_order_release);
}

static inline void fi_cache_add(fi_cache *cache, uint64_t word, uint64_t value)
{
    atomic_fetch_add_explicit(cache->words + word, value, memory_order_relaxed); /* a counter */
}

static inline bool fi_cache_swap(fi_cache *cache, uint64_t word, uint64_t from, uint64_t to)
{
    return atomic_compare_exchange_strong_explicit(cache->words + word, &from, to,
                                                   memory_order_acq_rel, memory_order_acquire);
}

/* Number of a row's word. */
static inline uint64_t fi_cache_row(uint64_t row)
{
    return FI_CACHE_INDEX + 2 * row;
}

static inline bool fi_cache_is_place(uint64_t word)
{
    return (word & FI_CACHE_PLACE) != 0;
}

/* `number` tells the claims of one process from each other. */
static inline uint64_t fi_cache_claim_of(uint64_t token, uint64_t key, uint64_t number)
{
    return FI_CACHE_CLAIM | (number & 4095) << 50 | (key & FI_CACHE_KEY_MASK) << 10 | token;
}

static inline uint64_t fi_cache_token(uint64_t claim)
{
    return claim & (FI_CACHE_TOKENS - 1);
}

static inline uint64_t fi_cache_key(uint64_t claim)
{
    return claim >> 10 & FI_CACHE_KEY_MASK;
}

/* Whether to try to store now. */
bool fi_cache_has_room(fi_cache *cache);

/* Stores a row that `claim` holds: `begun` bytes from `entry` on, which begins with its head, of which
 * it fills in what this table knows; then the parts, of which a table with checksums takes none.
 * FI_CACHE_FOUND; FI_CACHE_REFUSED if there is no room; FI_CACHE_NONE if the claim was lost. The
 * claim is gone in each case. */
int fi_cache_store(fi_cache *cache, uint64_t row, uint64_t claim, fi_cache_entry *entry,
                   uint64_t begun, const fi_cache_part *parts, int n);

/* Whether the checksum of the row's entry, whose word is `word`, needs no look in this opening. */
bool fi_cache_is_checked(const fi_cache *cache, uint64_t row, uint64_t word);

/* The entry of a row whose word is `word`: its head. FI_CACHE_BAD if it cannot be that. */
int fi_cache_head(const fi_cache *cache, uint64_t row, uint64_t word, fi_cache_entry *head);

/* Its content. FI_CACHE_NONE if the row was emptied meanwhile, FI_CACHE_BAD if it is damaged. */
int fi_cache_read(fi_cache *cache, uint64_t word, const fi_cache_entry *head, void *content);

/* The first FI_CACHE_PEEK bytes of the entry of a row that needs no check, or as many as it has. False
 * if there is no such row. */
bool fi_cache_peek(fi_cache *cache, uint64_t row, uint64_t *word, fi_cache_entry *head);

/* Copies bytes of the file; false if it has none there. */
bool fi_cache_copy(const fi_cache *cache, uint64_t offset, void *into, uint64_t bytes);

/* Where these bytes of the file are mapped, until fi_cache_unmap; NULL if they cannot be. Who reads
 * there gets SIGBUS if somebody cuts the file. */
const char *fi_cache_map(fi_cache *cache, uint64_t offset, uint64_t bytes);

/* The same of memory without a name, which nobody can cut; NULL of a file. */
const char *fi_cache_view(fi_cache *cache, uint64_t offset, uint64_t bytes);

/* Empties a row that is damaged, if it still has this word. */
void fi_cache_drop(fi_cache *cache, uint64_t row, uint64_t word);

/* Whether the row still has this word: what was read of its entry was whole then. */
bool fi_cache_has(const fi_cache *cache, uint64_t row, uint64_t word);

/* Ends all mappings. */
void fi_cache_unmap(fi_cache *cache);

/* Empties all rows and gives their space back. */
void fi_cache_clear(fi_cache *cache);

#endif
