# C of csrc/ring, grouped by header.

from libc.stdint cimport int64_t, uint32_t, uint64_t


cdef extern from "ring/fi_views.h" nogil:
    ctypedef struct fi_views:
        pass
    ctypedef struct fi_forks:
        pass
    ctypedef struct fi_returned:
        pass
    void fi_fork_begins(fi_forks *forks)
    void fi_fork_ended(fi_forks *forks)
    void fi_forks_begin_anew(fi_forks *forks)
    uint64_t fi_view_begins(fi_views *views, const fi_forks *forks)
    bint fi_view_ends(fi_views *views, const fi_forks *forks, uint64_t began)
    uint32_t fi_views_count(const fi_views *views)
    void fi_returned_push(fi_returned *returned, uint32_t slot, bint not_again)
    uint32_t fi_returned_take(fi_returned *returned)


cdef extern from "ring/fi_worker_stat.h" nogil:
    enum:
        FI_STAT_LOADING
        FI_STAT_FINISHING
        FI_STAT_STARTING
    ctypedef struct fi_worker_stat:
        pass
    ctypedef struct fi_report:
        int64_t since, index, range_since
        uint64_t rows, bytes, spills, claims, busy_ns
        uint64_t fetch_ns, write_ns, finish_ns, cpu_ns, delay_ns
        uint32_t ready, pid, start_error_bytes
    void fi_worker_stat_fetch_begins(fi_worker_stat *stat, int64_t index)
    void fi_worker_stat_fetches_since(fi_worker_stat *stat, int64_t index, int64_t since)
    void fi_worker_stat_fetch_ends(fi_worker_stat *stat)
    void fi_worker_stat_count(fi_worker_stat *stat, uint64_t rows, uint64_t bytes, uint64_t spills)
    void fi_worker_stat_busy(fi_worker_stat *stat, int64_t nanoseconds)
    void fi_worker_stat_begins(fi_worker_stat *stat, int64_t now_ns)
    void fi_worker_stat_finished(fi_worker_stat *stat, int64_t nanoseconds)
    void fi_worker_stat_sampled(fi_worker_stat *stat, int64_t fetch_ns, int64_t write_ns)
    void fi_worker_stat_allow_start(fi_worker_stat *stat, uint32_t start)
    bint fi_worker_stat_wait_for_start(fi_worker_stat *stat, uint32_t start, uint32_t pid)
    void fi_worker_stat_loaded(fi_worker_stat *stat, uint32_t start, uint32_t start_error_bytes)
    void fi_worker_stat_clear(fi_worker_stat *stat)
    void fi_worker_stat_read(const fi_worker_stat *stat, fi_report *report)
    ctypedef struct fi_cpu_meter:
        pass
    void fi_cpu_meter_start(fi_cpu_meter *meter)
    void fi_cpu_meter_look(fi_cpu_meter *meter, fi_worker_stat *stat, int64_t now_ns)


cdef extern from "ring/fi_call_cost.h" nogil:
    ctypedef struct fi_call_cost:
        pass
    void fi_call_cost_add(fi_call_cost *cost, uint32_t rows, int64_t nanoseconds)
    uint32_t fi_call_cost_claim(const fi_call_cost *cost, uint32_t n, uint32_t left,
                                uint32_t share, uint32_t even)


cdef extern from "ring/fi_ring.h" nogil:
    enum:
        FI_FETCH
        FI_OWNED
        FI_ROW_OK
        FI_SPILL
        FI_ERROR
        FI_POISON
        FI_CONVERTED_FIELDS
        FI_CONVERTED_OBJECT
        FI_CONVERTER_ERROR
        FI_FINISH_POISON
        FI_PACKED_EXAMPLE
        FI_PACKED_ERROR
        FI_PACKED_FIELD
        FI_PACKED_RESULT
        FI_PACKED_FAILURE
        FI_PACKED_REQUEST
        FI_SCHEMA_BYTES
        FI_START_ERROR_BYTES
    const uint64_t FI_ANY
    const uint32_t FI_WHOLE_BATCH
    ctypedef struct fi_geometry:
        uint32_t slots
        uint32_t workers
        uint32_t rows
        uint32_t schemas
        uint64_t slot_bytes
    ctypedef struct fi_window:
        char *address
        uint64_t used
    ctypedef struct fi_ring:
        fi_geometry geometry
        char *base
        int fd
        int event
        fi_worker_stat *worker_stats
        char *schemas
        char *start_errors
        fi_window *windows
        fi_returned returned
    int fi_ring_size(const fi_geometry *geometry, uint64_t *control, uint64_t *total)
    int fi_ring_allocate(const fi_ring *ring)
    int fi_ring_attach(fi_ring *ring, const fi_geometry *geometry, void *base, int fd, int event)
    void fi_ring_detach(fi_ring *ring)
    char *fi_slot_payload(const fi_ring *ring, uint32_t slot)
    int64_t *fi_row_index(const fi_ring *ring, uint32_t slot, uint32_t row)
    bint fi_slot_has_request(const fi_ring *ring, uint32_t slot)
    int fi_slot_request(const fi_ring *ring, uint32_t slot, uint64_t *offset, uint64_t *bytes)
    ctypedef struct fi_request:
        uint64_t offset
        uint64_t bytes
        uint32_t worker
    ctypedef struct fi_origin:
        uint64_t[2] seed
        uint64_t epoch
        uint64_t position
        uint64_t epoch_size
    int64_t fi_oldest_fetch(const fi_ring *ring)
    void fi_slot_origin(const fi_ring *ring, uint32_t slot, fi_origin *origin)
    uint64_t fi_row_epoch(const fi_origin *origin, uint32_t row, uint32_t n)
    uint64_t fi_slot_committed(const fi_ring *ring, uint32_t slot)
    uint64_t fi_slot_used(const fi_ring *ring, uint32_t slot)
    uint32_t fi_slot_schema(const fi_ring *ring, uint32_t slot)
    void fi_entry_set(const fi_ring *ring, uint32_t slot, uint32_t row, uint64_t offset,
                      uint64_t bytes)
    void fi_entry_get(const fi_ring *ring, uint32_t slot, uint32_t row, uint64_t *offset,
                      uint64_t *bytes)
    uint32_t fi_row_code(const fi_ring *ring, uint32_t slot, uint32_t row, uint64_t q)
    int fi_slot_commit(const fi_ring *ring, uint32_t slot, uint64_t committed, uint64_t bytes,
                       uint64_t *need, uint64_t *have)
    int fi_heap_take(const fi_ring *ring, uint32_t slot, uint64_t bytes, uint64_t *offset,
                     uint64_t *need, uint64_t *have)


cdef extern from "ring/fi_window.h" nogil:
    int fi_slot_reach(const fi_ring *ring, uint32_t slot, uint64_t nbytes)
    bint fi_slot_is_at(const fi_ring *ring, uint32_t slot, const char *address, uint64_t nbytes)
    int fi_slot_reach_all(const fi_ring *ring, uint32_t slot, uint64_t *nbytes)
    void fi_slot_unmap_smaller(const fi_ring *ring, uint32_t slot)
    bint fi_slot_offset(const fi_ring *ring, uint32_t slot, const void *place, uint64_t *offset)
    int fi_ring_forget(fi_ring *ring, uint64_t control)
    int fi_ring_inherit(fi_ring *ring, uint64_t control, bint inherited)
    void fi_slot_hold(const fi_ring *ring, uint32_t slot)
    bint fi_slot_is_held(const fi_ring *ring, uint32_t slot)
    bint fi_slot_let_go(const fi_ring *ring, uint32_t slot, bint is_shared)
    void fi_slot_free(const fi_ring *ring, uint32_t slot)
    void fi_ring_close(fi_ring *ring, bint keeps_held)
    bint fi_ring_has_file(const fi_ring *ring)
    bint fi_ring_has_event(const fi_ring *ring)


cdef extern from "ring/fi_ring_worker.h" nogil:
    enum:
        FI_CLAIM_ROWS
        FI_CLAIM_FINISH
        FI_CLAIM_NONE
    ctypedef struct fi_worker:
        fi_ring *ring
        uint32_t number
        uint32_t least
        int64_t row_ns
        fi_call_cost call
        bint leave
        bint hedges
        uint64_t rewound
        int64_t most_sleep
    ctypedef struct fi_claim:
        uint64_t q
        uint32_t slot
        uint32_t n
        uint32_t first
        uint32_t count
        uint32_t fetcher
    void fi_worker_init(fi_worker *worker, fi_ring *ring, uint32_t number, int bell_pipe)
    int fi_worker_next(fi_worker *worker, fi_claim *claim)
    bint fi_worker_leaves(const fi_worker *worker)
    bint fi_worker_finishes(const fi_worker *worker, const fi_claim *claim)
    void fi_worker_pace(fi_worker *worker, uint32_t rows, int64_t nanoseconds)
    bint fi_row_own(const fi_worker *worker, const fi_claim *claim, uint32_t row)
    bint fi_row_promise(const fi_worker *worker, const fi_claim *claim, uint32_t row, int64_t since,
                        int64_t *index)
    bint fi_row_announce(const fi_worker *worker, const fi_claim *claim, uint32_t row, int64_t since,
                         int64_t *index)
    bint fi_row_win(const fi_worker *worker, const fi_claim *claim, uint32_t row)
    void fi_row_done(const fi_worker *worker, const fi_claim *claim, uint32_t row, uint32_t code)
    size_t fi_rows_before(const fi_worker *worker, const fi_claim *claim, int64_t *indices, size_t most)
    void fi_worker_ready(const fi_worker *worker, const fi_claim *claim, uint32_t flags)
    bint fi_worker_outruns_cache(const fi_worker *worker, uint64_t batch_bytes)


cdef extern from "ring/fi_ring_parent.h" nogil:
    enum:
        FI_LOSS_FINISH
        FI_LEASED
    ctypedef struct fi_bell_pipe:
        int reader
    ctypedef struct fi_slot_record:
        uint64_t q
        uint32_t n
        int phase
    ctypedef struct fi_parent:
        fi_slot_record *slot
        uint32_t *free_stack
        uint32_t free_count
        uint64_t head
        uint64_t tail
        uint32_t leased
        uint32_t draining
        uint32_t retired
    ctypedef struct fi_loss:
        uint32_t slot
        uint32_t row
        uint64_t q
    int fi_parent_init(fi_parent *parent, fi_ring *ring, uint32_t spares, const fi_bell_pipe *bell_pipes)
    void fi_parent_clear(fi_parent *parent)
    int fi_parent_next_slot(fi_parent *parent, uint64_t bytes, uint32_t *slot)
    void fi_parent_origin(fi_parent *parent, uint32_t slot, const fi_origin *origin)
    int fi_parent_request(fi_parent *parent, uint32_t slot, const fi_request *request)
    int fi_parent_schedule(fi_parent *parent, uint32_t slot, const int64_t *indices, uint32_t n,
                           uint32_t schema, uint64_t heap, bint single, uint64_t *q)
    int fi_parent_move(fi_parent *parent, uint32_t slot, uint32_t to, uint32_t schema,
                       uint64_t heap, bint single)
    bint fi_parent_give_up_row(fi_parent *parent, uint32_t slot, uint32_t row)
    void fi_parent_publish(fi_parent *parent)
    void fi_parent_ring_all(fi_parent *parent)
    uint64_t fi_parent_committed(fi_parent *parent, uint32_t slot)
    int fi_parent_commit(fi_parent *parent, uint32_t slot, uint64_t bytes, uint64_t *need,
                         uint64_t *have)
    void fi_parent_decommit(fi_parent *parent, uint32_t slot, uint64_t bytes)
    void fi_parent_take_back(fi_parent *parent, uint32_t stack)
    void fi_parent_collect(fi_parent *parent)
    bint fi_parent_is_ready(const fi_parent *parent, uint32_t slot, uint32_t *flags)
    uint32_t fi_parent_count_ready(const fi_parent *parent)
    void fi_parent_announce_sleep(fi_parent *parent, uint64_t q)
    void fi_parent_cancel_sleep(fi_parent *parent)
    int fi_parent_check(const fi_parent *parent, uint32_t slot, uint32_t *irregular, uint32_t *row,
                        uint64_t *word)
    void fi_parent_take(fi_parent *parent, uint32_t slot, bint copied)
    void fi_parent_drop(fi_parent *parent, uint32_t slot)
    uint32_t fi_parent_usable(const fi_parent *parent)
    void fi_parent_reset(fi_parent *parent)
    uint32_t fi_parent_losses(const fi_parent *parent, uint32_t worker, fi_loss *losses,
                              uint32_t most)
    void fi_parent_return(fi_parent *parent, uint32_t worker, bint is_dead, const fi_loss *loss,
                          bint poison)
    void fi_parent_rewind(fi_parent *parent, uint32_t worker)
    void fi_parent_restore_hints(fi_parent *parent)
    void fi_parent_offer_singly(fi_parent *parent)
    bint fi_parent_is_asleep(const fi_parent *parent, uint32_t worker)
    bint fi_parent_stalled(const fi_parent *parent)
    void fi_parent_give_up(fi_parent *parent)
    void fi_parent_set_worker_count(fi_parent *parent, uint32_t count)
    void fi_parent_set_hedge(fi_parent *parent, double share)
    uint32_t fi_parent_hedged(const fi_parent *parent, uint32_t *won)
    void fi_parent_set_spin(fi_parent *parent, uint32_t pauses)
    void fi_parent_stop(fi_parent *parent)


cdef extern from "ring/fi_trace.h" nogil:
    enum:
        FI_TRACE_EVENTS
    enum fi_event_kind:
        FI_EVENT_FETCH
        FI_EVENT_WRITE
        FI_EVENT_FINISH
        FI_EVENT_HEDGE
        FI_EVENT_LOST
        FI_EVENT_WAIT
    ctypedef struct fi_event:
        int64_t began_ns
        int64_t took_ns
        int64_t index
        uint32_t batch
        uint32_t rows_kind
    bint fi_traces(const fi_ring *ring)
    void fi_trace_put(const fi_ring *ring, uint32_t worker, fi_event_kind kind,
                      const fi_event *event, uint32_t rows)
    int fi_trace_start(const fi_ring *ring, uint64_t *need, uint64_t *have)
    void fi_trace_stop(const fi_ring *ring)
    uint32_t fi_trace_read(const fi_ring *ring, uint32_t worker, fi_event *out)


cdef extern from "ring/fi_stream.h" nogil:
    enum:
        FI_CLOSED
    ctypedef struct fi_reader:
        fi_ring *ring
        uint64_t q
        uint32_t slot
        uint32_t rows
        bint has_slot
        bint is_open
    void fi_reader_init(fi_reader *reader, fi_ring *ring, uint32_t number, int bell_pipe,
                        uint64_t most)
    bint fi_reader_begin(fi_reader *reader)
    bint fi_reader_is_ready(const fi_reader *reader)
    bint fi_reader_find_slot(fi_reader *reader)
    void fi_reader_open(fi_reader *reader, uint64_t heap, uint32_t schema)
    void fi_reader_publish(fi_reader *reader, uint32_t code)
    void fi_reader_close(fi_reader *reader, bint last)

    ctypedef struct fi_source:
        uint32_t taken
        bint ended
    ctypedef struct fi_stream:
        fi_source *source
    ctypedef struct fi_part:
        uint64_t q
        uint32_t slot
        uint32_t first
        uint32_t count
        uint32_t flags
    int fi_stream_init(fi_stream *stream, fi_ring *ring, uint64_t credit, uint64_t most,
                       const fi_bell_pipe *bell_pipes)
    void fi_stream_clear(fi_stream *stream)
    int fi_stream_ready(fi_stream *stream, uint32_t reader, fi_part *part)
    uint32_t fi_stream_row_code(const fi_stream *stream, uint32_t reader, uint32_t row)
    bint fi_stream_lend(fi_stream *stream, uint32_t reader)
    void fi_stream_leave(fi_stream *stream, uint32_t reader, uint32_t flags)
    void fi_stream_collect(fi_stream *stream)
    void fi_stream_grant(fi_stream *stream, uint64_t samples)
