/* Short, frequent calls from Python, for which ctypes would take most of the time. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <time.h>

#include "fold.h"
#include "shm.h"

typedef int run_function(channel *, job *, int);

/* Return the address of an array's first element. None: it has no buffer, or is not contiguous. */
static PyObject *address_of(PyObject *module, PyObject *array) {
    Py_buffer buffer;
    if (PyObject_GetBuffer(array, &buffer, PyBUF_SIMPLE) < 0) {
        PyErr_Clear();
        Py_RETURN_NONE;
    }
    PyObject *address = PyLong_FromVoidPtr(buffer.buf);
    PyBuffer_Release(&buffer);
    return address;
}

/* Allreduces of short arrays between the ranks of one segment, from the call to the result.

   The code holds the GIL from the check of the lock until the end of a collective that does not wait. If a collective
   must wait, this thread acquires the lock before any other thread runs. Until then it holds the GIL for as long as
   a rank polls for the others before it sleeps, 60 us. */
typedef struct {
    PyObject_HEAD
    run_function *run; /* ringtrain_shm_run */
    channel *channel;
    PyObject *turn;       /* `SharedCommunicatorTurn` of communicators/base.py */
    PyObject *held;       /* its lock */
    PyObject *is_traced;  /* () -> bool: each collective must be reported to other code */
    PyObject *find;       /* (array, op, name) -> (address of its job, argument of `go_on`), or None */
    PyObject *go_on;      /* (result of `find`, outcome): holding the lock, wait until the job is done, or raise */
    PyObject *give_up;    /* (result of `find`, error): `go_on` has raised, or a signal handler before it began */
    PyObject *array_type; /* numpy.ndarray */
    PyObject *empty;
    PyObject *lies_at;    /* (array) -> address or None, for types without the buffer protocol */
    PyObject *owner;      /* keeps a reference to the channel */
    PyObject *found;      /* results of `find` by dtype, shape, op and name */
    PyObject *last;       /* result of `find` for the last collective without waiting */
    uint64_t number;      /* number of that collective */
    double ended;         /* its end, by time.monotonic */
} short_calls;

#define MOST_FOUND 256

/* Names of attributes, created once and never freed. */
static PyObject *dtype_, *shape_, *wanted_, *locked_, *acquire_, *release_;

/* Seconds in all short collectives since the last read. */
static double spent_s;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

/* Return the key (shape, dtype, op, name) of an array and its reduction. */
static PyObject *kind_of(PyObject *array, PyObject *op, PyObject *name) {
    PyObject *shape = PyObject_GetAttr(array, shape_), *dtype = PyObject_GetAttr(array, dtype_);
    PyObject *kind = shape && dtype ? PyTuple_Pack(4, shape, dtype, op, name) : NULL;
    Py_XDECREF(shape);
    Py_XDECREF(dtype);
    return kind;
}

/* Return a new reference to the result of `find` for arrays of this kind. */
static PyObject *found_of(short_calls *self, PyObject *array, PyObject *kind) {
    PyObject *found = PyDict_GetItemWithError(self->found, kind);
    if (found) {
        Py_INCREF(found);
    } else if (!PyErr_Occurred() &&
               (found = PyObject_CallFunctionObjArgs(
                    self->find, array, PyTuple_GET_ITEM(kind, 2), PyTuple_GET_ITEM(kind, 3), NULL))) {
        if (PyDict_GET_SIZE(self->found) >= MOST_FOUND) PyDict_Clear(self->found);
        if (PyDict_SetItem(self->found, kind, found) < 0) Py_CLEAR(found);
    }
    return found;
}

/* Get an array's memory. Return 1 if it is contiguous, aligned and writable; 0 if not; -1 for an error. */
static int memory_of(short_calls *self, PyObject *array, Py_buffer *buffer) {
    if (PyObject_GetBuffer(array, buffer, PyBUF_CONTIG) == 0) {
        uintptr_t unit = buffer->itemsize < 8 ? buffer->itemsize : 8;
        if (!unit || (uintptr_t)buffer->buf % unit == 0) return 1;
        PyBuffer_Release(buffer);
        return 0;
    }
    PyErr_Clear();
    buffer->obj = NULL; /* nothing to release */
    PyObject *address = PyObject_CallOneArg(self->lies_at, array);
    if (!address) return -1;
    int lies = address != Py_None;
    if (lies && !(buffer->buf = PyLong_AsVoidPtr(address)) && PyErr_Occurred()) lies = -1;
    Py_DECREF(address);
    return lies;
}

/* Return whether the lock is free, no thread waits for it, and the channel is in use. */
static int may_run(short_calls *self) {
    if (!self->channel->base || *self->channel->stop) return 0;
    PyObject *wanted = PyObject_GetAttr(self->turn, wanted_);
    if (!wanted) return -1;
    int others = PyObject_IsTrue(wanted);
    Py_DECREF(wanted);
    if (others) return others < 0 ? -1 : 0;
    PyObject *locked = PyObject_CallMethodNoArgs(self->held, locked_);
    if (!locked) return -1;
    others = PyObject_IsTrue(locked);
    Py_DECREF(locked);
    return others < 0 ? -1 : !others;
}

/* Call a function, and ignore its result and its error. */
static void call_quietly(PyObject *result, PyObject *function) {
    if (!result) PyErr_WriteUnraisable(function);
    Py_XDECREF(result);
}

/* End a begun job, holding the lock, and release it. Return 1; -1: an error, and no rank waits for this one. */
static int go_on(short_calls *self, PyObject *job, int outcome) {
    PyObject *type, *error, *trace, *ended = PyObject_CallFunction(self->go_on, "Oi", job, outcome);
    if (!ended) {
        PyErr_Fetch(&type, &error, &trace);
        PyErr_NormalizeException(&type, &error, &trace);
        call_quietly(PyObject_CallFunctionObjArgs(self->give_up, job, error, NULL), self->give_up);
    }
    call_quietly(PyObject_CallMethodNoArgs(self->held, release_), self->held);
    if (!ended) {
        PyErr_Restore(type, error, trace);
        return -1;
    }
    Py_DECREF(ended);
    return 1;
}

/* Reduce the values at `source` into `target`. Return 1; 0: the caller must use the slow path; -1: an error. */
static int run_short(short_calls *self, PyObject *found, void *source, void *target) {
    job *j = PyLong_AsVoidPtr(PyTuple_GET_ITEM(found, 0));
    int outcome = j ? may_run(self) : -1;
    if (outcome != 1) return outcome;
    j->source = source;
    j->gathered = target;
    j->phase = 0;
    j->hasty = 1;
    double began = now();
    outcome = self->run(self->channel, j, 1);
    if (outcome == DONE) {
        self->ended = now();
        self->number = self->channel->collective;
        spent_s += self->ended - began;
        Py_INCREF(found);
        Py_XSETREF(self->last, found);
        return 1;
    }
    PyObject *taken = PyObject_CallMethodNoArgs(self->held, acquire_);
    if (!taken) return -1;
    Py_DECREF(taken);
    return go_on(self, PyTuple_GET_ITEM(found, 1), outcome);
}

/* Do the same as `run_short` for arrays. `target`: may be `source`; NULL: it is set to a new array. */
static int reduce_short(short_calls *self, PyObject *kind, PyObject *found, PyObject *source, PyObject **target) {
    Py_buffer from, to;
    int done = memory_of(self, source, &from);
    if (done != 1) return done;
    if (*target == source) {
        done = run_short(self, found, from.buf, from.buf);
    } else {
        *target = PyObject_CallFunctionObjArgs(
            self->empty, PyTuple_GET_ITEM(kind, 0), PyTuple_GET_ITEM(kind, 1), NULL);
        done = *target ? memory_of(self, *target, &to) : -1;
        if (done == 1) {
            done = run_short(self, found, from.buf, to.buf);
            PyBuffer_Release(&to);
        }
    }
    PyBuffer_Release(&from);
    return done;
}

/* (array, op, name, in_place): return the reduction, or None if the caller must use the slow path. */
static PyObject *short_allreduce(PyObject *object, PyObject *const *arguments, Py_ssize_t count) {
    short_calls *self = (short_calls *)object;
    if (count != 4) return PyErr_Format(PyExc_TypeError, "allreduce takes 4 arguments, got %zd", count);
    PyObject *array = arguments[0], *result = NULL;
    if ((PyObject *)Py_TYPE(array) != self->array_type) Py_RETURN_NONE;
    PyObject *traced = PyObject_CallNoArgs(self->is_traced);
    if (!traced) return NULL;
    Py_DECREF(traced);
    if (traced != Py_False) Py_RETURN_NONE;
    PyObject *kind = kind_of(array, arguments[1], arguments[2]);
    PyObject *found = kind ? found_of(self, array, kind) : NULL;
    int done = found ? 0 : -1;
    if (found && found != Py_None) {
        if (arguments[3] == Py_True) {
            Py_INCREF(array);
            result = array;
        }
        done = reduce_short(self, kind, found, array, &result);
    }
    Py_XDECREF(kind);
    Py_XDECREF(found);
    if (done == 1) return result;
    Py_XDECREF(result);
    if (done < 0) return NULL;
    Py_RETURN_NONE;
}

/* Forget the results of `find`. */
static PyObject *forget(PyObject *object, PyObject *nothing) {
    PyDict_Clear(((short_calls *)object)->found);
    Py_RETURN_NONE;
}

/* Return number, end time and result of `find` of the last collective without waiting; or None. */
static PyObject *last_of(PyObject *object, PyObject *nothing) {
    short_calls *self = (short_calls *)object;
    if (!self->last) Py_RETURN_NONE;
    return Py_BuildValue("KdO", (unsigned long long)self->number, self->ended, PyTuple_GET_ITEM(self->last, 1));
}

static PyObject *make_short_calls(PyTypeObject *type, PyObject *arguments, PyObject *named) {
    unsigned long long run, channel_address;
    short_calls *self = (short_calls *)type->tp_alloc(type, 0);
    if (!self) return NULL;
    if (!PyArg_ParseTuple(arguments, "KKOOOOOOOOO:ShortCalls", &run, &channel_address, &self->turn, &self->is_traced,
                          &self->find, &self->go_on, &self->give_up, &self->array_type, &self->empty,
                          &self->lies_at, &self->owner)) {
        self->turn = self->is_traced = self->find = self->go_on = self->give_up = NULL; /* borrowed references */
        self->array_type = self->empty = self->lies_at = self->owner = NULL;
        Py_DECREF(self);
        return NULL;
    }
    PyObject *kept[] = {self->turn,       self->is_traced, self->find,    self->go_on, self->give_up,
                        self->array_type, self->empty,     self->lies_at, self->owner};
    for (int i = 0; i < 9; i++) Py_INCREF(kept[i]);
    self->run = (run_function *)(uintptr_t)run;
    self->channel = (channel *)(uintptr_t)channel_address;
    self->held = PyObject_GetAttrString(self->turn, "held");
    self->found = PyDict_New();
    if (!self->held || !self->found) Py_CLEAR(self);
    return (PyObject *)self;
}

static int visit_short_calls(PyObject *object, visitproc visit, void *arg) {
    short_calls *self = (short_calls *)object;
    Py_VISIT(Py_TYPE(object));
    PyObject *kept[] = {self->turn,       self->held,  self->is_traced, self->find,  self->go_on, self->give_up,
                        self->array_type, self->empty, self->lies_at,   self->owner, self->found, self->last};
    for (int i = 0; i < 12; i++) Py_VISIT(kept[i]);
    return 0;
}

static int clear_short_calls(PyObject *object) {
    short_calls *self = (short_calls *)object;
    PyObject **kept[] = {&self->turn,       &self->held,  &self->is_traced, &self->find,  &self->go_on, &self->give_up,
                         &self->array_type, &self->empty, &self->lies_at,   &self->owner, &self->found, &self->last};
    for (int i = 0; i < 12; i++) Py_CLEAR(*kept[i]);
    return 0;
}

static void end_short_calls(PyObject *object) {
    PyTypeObject *type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
    clear_short_calls(object);
    type->tp_free(object);
    Py_DECREF(type);
}

static PyMethodDef short_methods[] = {
    {"allreduce", (PyCFunction)(void (*)(void))short_allreduce, METH_FASTCALL, NULL},
    {"forget", forget, METH_NOARGS, NULL},
    {"last", last_of, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot short_slots[] = {
    {Py_tp_new, make_short_calls},      {Py_tp_dealloc, end_short_calls}, {Py_tp_traverse, visit_short_calls},
    {Py_tp_clear, clear_short_calls},   {Py_tp_methods, short_methods},   {0, NULL},
};

static PyType_Spec short_spec = {
    .name = "ringtrain._core.kernels._calls.ShortCalls", .basicsize = sizeof(short_calls),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, .slots = short_slots,
};

/* Return the seconds in short collectives without waiting since the last call. */
static PyObject *take_spent(PyObject *module, PyObject *nothing) {
    double taken = spent_s;
    spent_s = 0;
    return PyFloat_FromDouble(taken);
}

static PyMethodDef functions[] = {
    {"address_of", address_of, METH_O, NULL},
    {"take_spent", take_spent, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static int fill(PyObject *module) {
    PyObject **names[] = {&dtype_, &shape_, &wanted_, &locked_, &acquire_, &release_};
    const char *texts[] = {"dtype", "shape", "wanted", "locked", "acquire", "release"};
    for (int i = 0; i < 6; i++)
        if (!*names[i] && !(*names[i] = PyUnicode_InternFromString(texts[i]))) return -1;
    if (PyModule_AddIntConstant(module, "INTERFACE", INTERFACE) < 0) return -1;
    PyObject *type = PyType_FromModuleAndSpec(module, &short_spec, NULL);
    int outcome = type ? PyModule_AddType(module, (PyTypeObject *)type) : -1;
    Py_XDECREF(type);
    return outcome;
}

static PyModuleDef_Slot slots[] = {{Py_mod_exec, fill}, {0, NULL}};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, .m_name = "_calls", .m_size = 0, .m_methods = functions, .m_slots = slots,
};

PyMODINIT_FUNC PyInit__calls(void) { return PyModuleDef_Init(&definition); }
