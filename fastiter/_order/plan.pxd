from libc.stdint cimport int64_t


cdef struct Step:
    int64_t rows  # on all ranks; 0 if the epoch has none left
    int64_t first  # the rank's first one, in the step
    int64_t count  # the rank's rows
    int64_t n_valid  # of these, from the first one on, are no repetitions
    int64_t number  # of the step in its epoch, from 0
    bint is_last  # of its epoch


cdef class Plan:
    cdef readonly object indices
    cdef readonly object state
    cdef readonly object error
    cdef object current_work
    cdef public object outcome
    cdef public object progress
    cdef public Py_ssize_t n_dropped
    cdef readonly object request
    cdef readonly int worker
    cdef readonly object seeds
    cdef readonly int64_t epoch
    cdef readonly int64_t position
    cdef readonly int64_t epoch_size
    cdef readonly int64_t number
    cdef readonly int64_t n_valid
    cdef public int64_t n_valid_dropped
    cdef void put_work(self, object work) noexcept
    cdef int64_t size(self) noexcept
    cpdef int64_t epoch_of(self, int64_t row) except? -1


cdef class PlanQueue:
    cdef object current, current_progress
    cdef Plan last
    cdef readonly object planned  # state of the batch planned last
    cdef readonly int64_t batch_size
    cdef readonly bint repeat
    cdef public int64_t rank
    cdef readonly int64_t num_ranks
    cdef readonly bint drop_last
    cdef int tail_kind
    cdef readonly bint is_begun
    cdef public object example_seed  # 128 bits; None: plans have no seeds
    cdef public bint unordered  # whether complete batches overtake others
    cdef readonly dict delivered_early  # states after batches delivered before older ones, by step
    cdef readonly list plans  # planned and not delivered, in the order of their delivery
    cdef bint is_passing  # the batch of the state was passed over
    cdef public object former_size  # examples of an epoch that was begun with fewer; else None
    cdef public object epochs  # for a subclass, where the next epoch is drawn ahead; else None
    cdef int64_t n_begun  # how many orders were drawn when that was begun last
    cdef void put_state(self, object state, object progress, Plan last) noexcept
    cdef Plan first(self)
    cdef bring_forward(self, Plan plan)
    cpdef Plan ahead(self)
    cdef Plan commit(self)
    cpdef pass_over(self)
    cdef Plan plan_one(self)
    cdef tuple joined(self, Plan plan)
    cpdef Plan advance(self, object state)
    cpdef int64_t counted(self, object order, int64_t position, int64_t size) except -1
    cdef bint is_endless(self, object cuts) noexcept
    cdef void cut(self, object cuts, int64_t position, int64_t size, int64_t rank,
                  bint is_endless, Step *step) noexcept
    cdef int64_t share(self, int64_t left) noexcept
    cpdef int64_t n_steps(self, object cuts, int64_t position, int64_t size)
    cdef object piece(self, object order, int64_t start, int64_t stop)


cdef class TurnPlanQueue(PlanQueue):
    cdef readonly Py_ssize_t n_workers
    cdef readonly int64_t rows
    cdef public object order, cutter
