/* What Python calls so often for so little that ctypes would take most of the time. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "fold.h"
#include "shm.h"

typedef int run_function(channel *, job *, int);

/* Where an array's first element lies. None: it has no buffer that could be asked, or is not contiguous. */
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

/* (ringtrain_shm_run, channel, job, source, target): begin a short job, and end it or return AGAIN where another rank
   lets it wait; see shm.h. None: an array has no buffer. */
static PyObject *run_short(PyObject *module, PyObject *const *arguments, Py_ssize_t count) {
    void *addresses[3];
    Py_buffer source, target;
    if (count != 5) return PyErr_Format(PyExc_TypeError, "run_short takes 5 arguments, got %zd", count);
    for (int i = 0; i < 3; i++)
        if (!(addresses[i] = PyLong_AsVoidPtr(arguments[i]))) {
            if (!PyErr_Occurred()) PyErr_SetString(PyExc_ValueError, "run_short got a null address");
            return NULL;
        }
    if (PyObject_GetBuffer(arguments[3], &source, PyBUF_SIMPLE) < 0) {
        PyErr_Clear();
        Py_RETURN_NONE;
    }
    if (PyObject_GetBuffer(arguments[4], &target, PyBUF_WRITABLE) < 0) {
        PyBuffer_Release(&source);
        PyErr_Clear();
        Py_RETURN_NONE;
    }
    job *j = addresses[2];
    j->source = source.buf;
    j->gathered = target.buf;
    j->phase = 0;
    j->hasty = 1;
    int outcome;
    Py_BEGIN_ALLOW_THREADS
    outcome = ((run_function *)addresses[0])(addresses[1], j, 1);
    Py_END_ALLOW_THREADS
    PyBuffer_Release(&target);
    PyBuffer_Release(&source);
    return PyLong_FromLong(outcome);
}

static PyMethodDef functions[] = {
    {"address_of", address_of, METH_O, NULL},
    {"run_short", (PyCFunction)(void (*)(void))run_short, METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};

static int add_interface(PyObject *module) { return PyModule_AddIntConstant(module, "INTERFACE", INTERFACE); }

static PyModuleDef_Slot slots[] = {{Py_mod_exec, add_interface}, {0, NULL}};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, .m_name = "_calls", .m_size = 0, .m_methods = functions, .m_slots = slots,
};

PyMODINIT_FUNC PyInit__calls(void) { return PyModuleDef_Init(&definition); }
